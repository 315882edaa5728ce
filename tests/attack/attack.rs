//! What an attack is: a program, what it is proved by, and what holds against it.

use crate::place::User;

/// A program that tries what a defence is there to prevent.
#[derive(Debug)]
pub(crate) struct Attack {
    /// What it tries, in words.
    pub(crate) name: &'static str,
    /// A script for the patched shell.
    pub(crate) program: &'static str,
    /// What counts as success.
    pub(crate) success: Success,
    /// Where it succeeds.
    pub(crate) control: Control,
    /// Further options of its session.
    pub(crate) options: &'static [&'static str],
    /// Who can try it.
    pub(crate) who: Who,
    pub(crate) landlock: Held,
    pub(crate) bubblewrap: Held,
    /// Why it isn't stopped.
    pub(crate) why: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Success {
    /// The script ends with status 0.
    Status,
    /// It prints the secret: something that it has run could read it.
    Secret,
    /// It is a change between question and answer, after which another program ran than was asked about.
    Swap,
}

/// What is missing where the attack has to succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// The sandbox: `--sandbox none`, with the same rules.
    NoSandbox,
    /// The gate: natively, in the gate's surroundings.
    NoGate,
    /// What rules are careful about: the same sandbox, with rules that keep every variable, let a session's own
    /// programs leave it, and allow what the real ones don't.
    LooseRules,
    /// The escalation: the same sandbox, where a command runs inside by its name, whatever that leads to by then.
    Run,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Anybody,
    /// To others the kernel refuses it anyway.
    Root,
    /// To root it gives nothing.
    Ordinary,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Yes,
    No,
    /// Root's session has fewer capabilities than what it attacks.
    NoUnlessRoot,
}

impl Attack {
    /// One that is stopped everywhere, and succeeds where there is no sandbox.
    pub(crate) const fn new(name: &'static str, program: &'static str) -> Self {
        Self {
            name,
            program,
            success: Success::Status,
            control: Control::NoSandbox,
            options: &[],
            who: Who::Anybody,
            landlock: Held::Yes,
            bubblewrap: Held::Yes,
            why: "",
        }
    }

    pub(crate) const fn by(self, who: Who) -> Self {
        Self { who, ..self }
    }

    pub(crate) const fn proved_by(self, control: Control) -> Self {
        Self { control, ..self }
    }

    pub(crate) const fn with_the_network(self) -> Self {
        Self {
            options: &["--network", "on"],
            ..self
        }
    }

    pub(crate) const fn that(self, success: Success) -> Self {
        Self { success, ..self }
    }

    /// It isn't stopped everywhere.
    pub(crate) const fn held(self, landlock: Held, bubblewrap: Held, why: &'static str) -> Self {
        Self {
            landlock,
            bubblewrap,
            why,
            ..self
        }
    }

    /// Whether this backend stops it.
    pub(crate) fn is_stopped(&self, backend: &str, user: User) -> bool {
        let held = match backend {
            "landlock" => self.landlock,
            _ => self.bubblewrap,
        };
        held == Held::Yes || held == Held::NoUnlessRoot && user.is_root()
    }

    /// The script with its beginning: a program `evil` that tells the secret where it can be read, and two files.
    pub(crate) fn script(&self) -> String {
        let program = self.program;
        let name = self.name;
        let beginning = "printf '#!/bin/sh\ncat ../../home/.ssh/id\n' >evil; chmod +x evil; echo 1 >a; echo 2 >b\n";
        match self.success {
            Success::Status => format!("# {name}\n{beginning}{program}\n"),
            Success::Swap => format!("# {name}\n{}", crate::swaps::script(name, program)),
            Success::Secret => format!(
                "# {name}\n{beginning}(\n{program}\n) >said 2>errors\ntest $? = 77 && exit 77\n\
                 cat said errors; grep -q secret-of-mine said\n"
            ),
        }
    }

    /// Its line in the table of what isn't stopped.
    pub(crate) fn row(&self) -> String {
        let held = |held| match held {
            Held::Yes => "stopped",
            Held::No => "**not stopped**",
            Held::NoUnlessRoot => "**not stopped**, but for root",
        };
        format!(
            "| {} | {} | {} | {} |",
            self.name,
            held(self.landlock),
            held(self.bubblewrap),
            self.why
        )
    }
}

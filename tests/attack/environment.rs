//! Attacks by the environment of a command that leaves the sandbox: variables that have it run the session's code.

use crate::attack::{Attack, Control, Success, Who};

pub(crate) const ATTACKS: &[Attack] = &[
    by_variables(
        "have an escalated command load a library (`LD_PRELOAD`)",
        "LD_PRELOAD=$BUILT/preloaded uname",
    ),
    by_variables(
        "have the dynamic loader load an auditor (`LD_AUDIT`)",
        "LD_AUDIT=$BUILT/preloaded uname",
    ),
    by_variables(
        "have bash read a file first (`BASH_ENV`)",
        "BASH_ENV=$PWD/evil /bin/bash -c :",
    ),
    by_variables(
        "have an interactive shell read a file first (`ENV`)",
        "ENV=$PWD/evil sh -ic :",
    ),
    by_variables(
        "give bash a function for a command",
        "uname() { . ./evil; }; export -f uname; /bin/bash -c uname",
    ),
    by_variables(
        "have bash expand a prompt (`SHELLOPTS`, `PS4`)",
        "python3 $PROGRAMS/requests.py ask SHELLOPTS=xtrace 'PS4=$(. ./evil)' -- /bin/bash -c : 2>&1",
    )
    .by(Who::Ordinary),
    by_variables(
        "have a shell find another command (`PATH`)",
        "ln evil uname; PATH=$PWD:$PATH /bin/sh -c uname",
    ),
    by_variables(
        "have git read another home (`HOME`)",
        "printf '[diff]\\nexternal = ./evil;:\\n' >.gitconfig; HOME=$PWD git diff --no-index a b",
    ),
    by_variables(
        "have git compare by a program (`GIT_EXTERNAL_DIFF`)",
        "GIT_EXTERNAL_DIFF=./evil git diff --no-index a b",
    ),
    by_variables(
        "have git take settings from variables (`GIT_CONFIG_COUNT`)",
        "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=diff.external GIT_CONFIG_VALUE_0=./evil git diff --no-index a b",
    ),
    by_variables(
        "have git connect by a program (`GIT_SSH_COMMAND`)",
        "GIT_SSH_COMMAND='./evil >&2;:' git ls-remote ssh://localhost/x 2>&1",
    ),
    by_variables(
        "have Python import a module (`PYTHONPATH`)",
        "echo 'print(open(\"../../home/.ssh/id\").read())' >sitecustomize.py; PYTHONPATH=$PWD python3 -c pass",
    ),
    by_variables(
        "have Python read a file first (`PYTHONSTARTUP`)",
        "echo 'print(open(\"../../home/.ssh/id\").read())' >first.py; PYTHONSTARTUP=$PWD/first.py python3 -i",
    ),
    by_variables(
        "have Perl use a module (`PERL5OPT`)",
        "echo 'system(\"./evil\"); 1;' >Evil.pm; PERL5OPT=-MEvil PERL5LIB=$PWD perl -e 1",
    ),
    by_variables(
        "have make read a makefile first (`MAKEFILES`)",
        "printf '$(info $(shell ./evil))\\n' >evil.mk; MAKEFILES=$PWD/evil.mk make -s -f /dev/null",
    ),
    by_variables(
        "have tar run a program (`TAR_OPTIONS`)",
        "TAR_OPTIONS='--checkpoint=1 --checkpoint-action=exec=./evil --blocking-factor=1' tar -cf /dev/null /etc/hostname",
    ),
    by_variables(
        "have Node load a module (`NODE_OPTIONS`)",
        "test -x /usr/bin/node || exit 77
         echo 'console.log(require(\"fs\").readFileSync(\"../../home/.ssh/id\", \"utf8\"))' >evil.js
         NODE_OPTIONS=--require=$PWD/evil.js node -e 1",
    ),
];

/// `evil` in the attack's directory tells the secret where it can read it; that is what the command has to print.
const fn by_variables(name: &'static str, program: &'static str) -> Attack {
    Attack::new(name, program)
        .proved_by(Control::LooseRules)
        .that(Success::Secret)
}

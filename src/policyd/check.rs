//! `check`: what rules would answer, and why, without any service.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;

use super::approvals::asked;
use super::described;
use super::identity::GateIdentity;
use super::rules::{
    Answer, EnvironmentFact, ExecFacts, OpinionReuseScope, Rules, RulesError, Ruling, SessionFacts,
    UserFacts,
};
use super::text;
use crate::model::{
    EscalationDecision, EscalationExecution, ExecId, NetworkAccess, ProcessIdentity, Unprotected,
};
use crate::pb::{self, v1};
use crate::program::{Digest, Digests, Examination, WritablePlaces, Writer};
use crate::sys::place::Rights;

/// How long a digest may take.
const MOST_TIME: Duration = Duration::from_secs(60);

/// The command line of `check`.
#[derive(Debug, Clone, Args)]
#[command(
    after_long_help = "The command isn't run. A bare name is looked up in PATH, as a shell does it.\n\n\
        Examples:\n\
        \x20 execgate check --rules demo.rules.star -- git push origin main\n\
        \x20 execgate check --rules demo.rules.star --label ci=yes --workdir /srv -- make install\n\
        \x20 execgate check --rules demo.rules.star --output json -- /opt/tool/bin/x | jq .matched\n\n\
        Exit codes:\n\
        \x20 0  run it inside the sandbox\n\
        \x20 1  the answer couldn't be written\n\
        \x20 2  the rules can't be used, the command isn't found, or the command line is wrong\n\
        \x20 3  escalate: run it outside the sandbox\n\
        \x20 4  deny it\n\
        \x20 5  ask a person"
)]
pub struct CheckArgs {
    /// File of rules to ask, or a directory of files whose names end with .rules or .rules.star. May be given
    /// more than once.
    #[arg(long, value_name = "PATH", required = true)]
    pub rules: Vec<PathBuf>,

    /// Directory that the command would be started in; this one if not given.
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,

    /// Label of the session. May be given more than once.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,

    /// Variable of the command's environment that the rules ask for, as a gate whose owner allows it
    /// would send it. May be given more than once.
    #[arg(long = "environment", value_name = "NAME=VALUE", value_parser = variable)]
    pub environment: Vec<(OsString, OsString)>,

    /// Gate of the session, as `exec.gate` has it: uri:URI, dns:NAME, token:NAME, uid:NUMBER or
    /// anonymous.
    #[arg(long, value_name = "IDENTITY", value_parser = GateIdentity::parse, default_value = "anonymous")]
    pub gate: GateIdentity,

    /// User of the session: NAME, UID or NAME:UID.
    #[arg(long, value_name = "USER", value_parser = user, default_value = "root:0")]
    pub user: CheckUser,

    /// How to write the answer.
    #[arg(long, value_enum, default_value_t = CheckOutput::Text)]
    pub output: CheckOutput,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// How the answer of `check` is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckOutput {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// A user, as `--user` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckUser {
    /// Name; may be empty.
    pub name: String,
    /// Numeric user id.
    pub uid: u32,
}

/// What the rules would answer.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckAnswer {
    /// Run it inside the sandbox.
    Run,
    /// Run it outside.
    Escalate,
    /// Refuse it.
    Deny,
    /// Ask a person.
    Ask,
}

impl CheckAnswer {
    /// The program's exit code for it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Run => 0,
            Self::Escalate => 3,
            Self::Deny => 4,
            Self::Ask => 5,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The rules can't be used.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The command isn't in PATH.
    #[error("looking up {name}: no directory of PATH has such a program; write its path")]
    NotFound {
        /// The command, fit to show.
        name: String,
    },
    /// The command is one word that holds several.
    #[error(
        "looking up {name}: there is no such program, and the words of a command are given one by one: \
         execgate check ... -- {words}; the command strings of `execgate exec` are for a shell"
    )]
    OneString {
        /// The command, fit to show.
        name: String,
        /// The same, as it may have been meant.
        words: String,
    },
    /// A variable that the rules don't ask for.
    #[error(
        "--environment {name}: the rules don't ask for it, so that no gate would send it; \
         request_environment([...]) names what is asked for"
    )]
    NotRequested {
        /// Its name, fit to show.
        name: String,
    },
    /// The current directory isn't known.
    #[error("finding the current directory: {source}; give --workdir")]
    Workdir {
        /// Why.
        source: std::io::Error,
    },
    /// The answer can't be written.
    #[error("writing the answer: {source}")]
    Write {
        /// Why.
        #[from]
        source: std::io::Error,
    },
}

impl CheckError {
    /// The program's exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Rules(_)
            | Self::NotFound { .. }
            | Self::OneString { .. }
            | Self::NotRequested { .. }
            | Self::Workdir { .. } => 2,
            Self::Write { .. } => 1,
        }
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

fn variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

fn user(text: &str) -> Result<CheckUser, String> {
    let (name, uid) = match text.split_once(':') {
        Some((name, uid)) => (name, uid),
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => ("", text),
        // A name alone: an id that belongs to nobody.
        None => (text, "65534"),
    };
    let uid = uid
        .parse()
        .map_err(|_| "write NAME, UID or NAME:UID".to_owned())?;
    Ok(CheckUser {
        name: name.to_owned(),
        uid,
    })
}

/// Asks the rules about one command and writes what they answer, and why.
///
/// # Errors
/// When there is no answer, or it can't be written.
pub fn run(args: &CheckArgs, out: &mut dyn Write) -> Result<CheckAnswer, CheckError> {
    let rules = Rules::load_all(&args.rules)?;
    let workdir = match &args.workdir {
        Some(workdir) => std::path::absolute(workdir),
        None => std::env::current_dir(),
    }
    .map_err(|source| CheckError::Workdir { source })?;
    let program = args.command.first().map_or(OsStr::new(""), |word| word);
    let found = resolve(program, &workdir, std::env::var_os("PATH").as_deref());
    if let [only] = &args.command[..]
        && !found.as_ref().is_ok_and(|file| file.exists())
        && let Some(words) = several_words(only)
    {
        return Err(CheckError::OneString {
            name: text::quoted(only.as_bytes()),
            words,
        });
    }
    let file = found?;
    let session = SessionFacts {
        gate: args.gate.clone(),
        labels: args.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
        user: UserFacts {
            uid: args.user.uid,
            gid: args.user.uid,
            name: args.user.name.clone(),
        },
        workdir: workdir.as_os_str().as_bytes().to_vec(),
        ..SessionFacts::default()
    };
    for (name, _) in &args.environment {
        let mut asked = rules.requested_environment().iter();
        if !asked.any(|asked| asked == name.as_bytes()) {
            return Err(CheckError::NotRequested {
                name: text::quoted(name.as_bytes()),
            });
        }
    }
    let given = args.environment.iter().map(|(name, _)| name.clone());
    let names: BTreeSet<OsString> = std::env::vars_os()
        .map(|(name, _)| name)
        .chain(given)
        .collect();
    let (executable, workdir_protection) = looked_at(&file, &workdir, args.user.uid);
    let facts = ExecFacts {
        id: ExecId(1),
        file: file.as_os_str().as_bytes(),
        argv: args.command.iter().map(|word| word.as_bytes()).collect(),
        workdir: workdir.as_os_str().as_bytes(),
        environment_names: names.iter().map(|name| name.as_bytes()).collect(),
        environment: args
            .environment
            .iter()
            .map(|(name, value)| EnvironmentFact {
                name: name.as_bytes(),
                value: value.as_bytes(),
                is_redacted: false,
            })
            .collect(),
        redacted_arguments: &[],
        executable: Some(&executable),
        workdir_protection,
        process: ProcessIdentity {
            uid: args.user.uid,
            gid: args.user.uid,
            ..ProcessIdentity::default()
        },
        parent: None,
        session: &session,
    };
    let ruling = rules.evaluate(&facts);
    match args.output {
        CheckOutput::Text => write_text(&rules, &facts, &ruling, out)?,
        CheckOutput::Json => write_json(&rules, &facts, &ruling, out)?,
    }
    out.flush()?;
    Ok(match ruling.decision {
        _ if ruling.ask.is_some() => CheckAnswer::Ask,
        EscalationDecision::Run => CheckAnswer::Run,
        EscalationDecision::Escalate(_) => CheckAnswer::Escalate,
        EscalationDecision::Deny { .. } => CheckAnswer::Deny,
    })
}

/// The program's file as a gate on this host would describe it, for a session of this user without a
/// sandbox.
fn looked_at(file: &Path, workdir: &Path, user: u32) -> (v1::ExecutableInfo, v1::Protection) {
    let rights = Rights {
        user,
        groups: Vec::new(),
        overrides_permissions: user == 0,
    };
    let examination = Examination {
        writer: &Writer::new(&rights, WritablePlaces::Everywhere).with(user, user),
        digests: &Digests::default(),
        wanted: Digest::Sha256,
        until: Instant::now() + MOST_TIME,
    };
    let protection = examination.directory(workdir);
    (
        pb::executable_info(&examination.examine(file, workdir).executable),
        protection.map_or(v1::Protection::Unspecified, |protection| {
            pb::protection(&protection)
        }),
    )
}

/// A command string as its words, where it has several.
fn several_words(string: &OsStr) -> Option<String> {
    let words = shlex::split(string.to_str()?)?;
    let words = words.iter().map(String::as_bytes);
    (words.len() > 1).then(|| text::command_line(words, 4_096))
}

/// The program that a shell would execute for a command word.
fn resolve(
    program: &OsStr,
    workdir: &Path,
    search_path: Option<&OsStr>,
) -> Result<PathBuf, CheckError> {
    if program.as_bytes().contains(&b'/') {
        // As a gate does it: joined, and nothing else changed.
        return Ok(workdir.join(program));
    }
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    search_path
        .into_iter()
        .flat_map(std::env::split_paths)
        .map(|directory| workdir.join(directory).join(program))
        .find(is_program)
        .filter(|_| !program.is_empty())
        .ok_or_else(|| CheckError::NotFound {
            name: text::quoted(program.as_bytes()),
        })
}

/// What is decided, if need be once a person has approved.
fn decided(ruling: &Ruling) -> EscalationDecision {
    match &ruling.ask {
        Some(ask) => ask.effect.decision(),
        None => ruling.decision.clone(),
    }
}

/// What would be done where that is only monitored.
fn monitored_name(decision: &EscalationDecision) -> String {
    match decision {
        EscalationDecision::Run => "run".to_owned(),
        EscalationDecision::Escalate(execution) => Answer::Escalate(execution.clone()).to_string(),
        EscalationDecision::Deny { .. } => "deny".to_owned(),
    }
}

fn decision_name(ruling: &Ruling) -> String {
    if let Some(ask) = &ruling.ask {
        return Answer::Ask(ask.clone()).to_string();
    }
    match &ruling.decision {
        EscalationDecision::Run => "run".to_owned(),
        EscalationDecision::Escalate(execution) => Answer::Escalate(execution.clone()).to_string(),
        EscalationDecision::Deny { .. } => "deny".to_owned(),
    }
}

fn write_text(
    rules: &Rules,
    facts: &ExecFacts<'_>,
    ruling: &Ruling,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let shown = |words: &str| text::shown(words.as_bytes());
    let command = std::iter::once(facts.file).chain(facts.argv.iter().copied().skip(1));
    writeln!(out, "command   {}", text::command_line(command, 2_000))?;
    writeln!(out, "answer    {}", decision_name(ruling))?;
    if let Some(ask) = &ruling.ask {
        let within = humantime::format_duration(ask.within);
        let asked = asked(ask.asked.as_deref().unwrap_or_default());
        writeln!(out, "asks      {asked}")?;
        writeln!(out, "within    {within}")?;
    }
    if let EscalationDecision::Escalate(EscalationExecution::Permissions(permissions)) =
        &decided(ruling)
    {
        let network = match permissions.network {
            NetworkAccess::Denied => "denied",
            NetworkAccess::Allowed => "allowed",
        };
        writeln!(out, "network   {network}")?;
        for (what, paths) in [
            ("may read", &permissions.readable),
            ("may write", &permissions.writable),
        ] {
            for path in paths {
                let path = text::quoted(path.as_os_str().as_bytes());
                writeln!(out, "{what:<10}{path}")?;
            }
        }
    }
    if let Some(would) = &ruling.monitored {
        writeln!(out, "monitored it would be: {}", monitored_name(would))?;
    }
    writeln!(out, "rule      {}", shown(&ruling.rule))?;
    for (what, words) in [("reason", &ruling.reason), ("code", &ruling.reason_code)] {
        // A question's code says who answers it, which isn't known here.
        let is_known = what == "reason" || ruling.ask.is_none();
        if !words.is_empty() && is_known {
            writeln!(out, "{what:<10}{}", shown(words))?;
        }
    }
    if let Some(reuse) = ruling.reuse {
        writeln!(out, "reuse     {reuse}")?;
    }
    writeln!(out, "revision  {}", rules.revision())?;
    if let Some(note) = rules.overlooked(facts.file) {
        writeln!(out, "note      {note}")?;
    }
    if let Some(note) = refused_by_gates(facts, ruling) {
        writeln!(out, "note      {note}")?;
    }
    match ruling.matched.len() {
        0 => return Ok(()),
        1 => writeln!(out, "\nOne opinion:")?,
        count => writeln!(
            out,
            "\n{count} opinions; the strictest wins, the first of equals:"
        )?,
    }
    for (position, opinion) in ruling.matched.iter().enumerate() {
        let mark = if ruling.winner == Some(position) {
            "->"
        } else {
            "  "
        };
        let reason = opinion
            .justification
            .as_ref()
            .map_or_else(String::new, |words| format!(": {}", shown(words)));
        let name = if opinion.rule == opinion.place {
            String::new()
        } else {
            format!(" {}", shown(&opinion.rule))
        };
        writeln!(
            out,
            "{mark} {:<22} {}{name} ({}){reason}",
            opinion.answer.to_string(),
            shown(&opinion.place),
            shown(&opinion.why),
        )?;
    }
    Ok(())
}

/// Says so if a gate wouldn't follow the answer for a program like this one.
fn refused_by_gates(facts: &ExecFacts<'_>, ruling: &Ruling) -> Option<String> {
    let info = facts.executable?;
    let is_escalated = matches!(ruling.decision, EscalationDecision::Escalate(_));
    let is_writable = info.protection() == v1::Protection::Writable;
    (is_escalated && is_writable && ruling.terms.unprotected == Unprotected::Denied).then(|| {
        format!(
            "a gate denies it where its session can write {}, unless the rule has unprotected = \"allow\"",
            text::command_line([&info.writable_path[..]], 200)
        )
    })
}

fn write_json(
    rules: &Rules,
    facts: &ExecFacts<'_>,
    ruling: &Ruling,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let path_text =
        |path: &PathBuf| String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
    let (decision, execution) = match &decided(ruling) {
        EscalationDecision::Run => ("run", json!(null)),
        EscalationDecision::Deny { .. } => ("deny", json!(null)),
        EscalationDecision::Escalate(execution) => (
            "escalate",
            match execution {
                EscalationExecution::Unsandboxed => json!("unsandboxed"),
                EscalationExecution::TurnDefault => json!("turn_default"),
                EscalationExecution::Permissions(permissions) => json!({
                    "network": match permissions.network {
                        NetworkAccess::Denied => "denied",
                        NetworkAccess::Allowed => "allowed",
                    },
                    "read": permissions.readable.iter().map(path_text).collect::<Vec<_>>(),
                    "write": permissions.writable.iter().map(path_text).collect::<Vec<_>>(),
                }),
            },
        ),
    };
    let matched: Vec<_> = ruling
        .matched
        .iter()
        .enumerate()
        .map(|(position, opinion)| {
            json!({
                "rule": opinion.rule,
                "place": opinion.place,
                "why": opinion.why,
                "answer": opinion.answer.to_string(),
                "justification": opinion.justification,
                "reason_code": opinion.reason_code,
                "decided": ruling.winner == Some(position),
            })
        })
        .collect();
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let answer = json!({
        "program": lossy(facts.file),
        "argv": facts.argv.iter().map(|word| lossy(word)).collect::<Vec<_>>(),
        "decision": if ruling.ask.is_some() { "ask" } else { decision },
        "ask": ruling.ask.as_ref().map(|ask| json!({
            "then": decision,
            "asks": ask.asked,
            "seconds": ask.within.as_secs_f64(),
        })),
        "execution": execution,
        "monitored": ruling.monitored.as_ref().map(monitored_name),
        "reason": ruling.reason,
        "reason_code": if ruling.ask.is_some() { "" } else { &ruling.reason_code },
        "rule": ruling.rule,
        "reuse": ruling.reuse.map(|reuse| {
            let (scope, arguments) = match reuse.scope {
                OpinionReuseScope::Exec => ("exec", None),
                OpinionReuseScope::Prefix(length) => ("prefix", Some(length)),
            };
            json!({"seconds": reuse.valid_for.as_secs_f64(), "scope": scope, "arguments": arguments})
        }),
        "rules_revision": rules.revision(),
        "note": rules.overlooked(facts.file).or_else(|| refused_by_gates(facts, ruling)),
        "executable": described::executable(facts.executable),
        "workdir_protection": described::protection(facts.workdir_protection),
        "matched": matched,
    });
    writeln!(out, "{}", text::plain_json(&answer))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        check: CheckArgs,
    }

    fn check(rules: &str, arguments: &[&str]) -> (Result<CheckAnswer, CheckError>, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.rules");
        std::fs::write(&path, rules).expect("a file");
        let path = path.to_str().expect("text");
        let line = ["check", "--rules", path]
            .into_iter()
            .chain(arguments.iter().copied());
        let cli = Cli::try_parse_from(line).expect("a command line");
        let mut out = Vec::new();
        let answer = run(&cli.check, &mut out);
        (answer, String::from_utf8(out).expect("text"))
    }

    const RULES: &str = r#"
prefix_rule(["git"], "run")
prefix_rule(["git", "push"], "deny", justification = "Ask first.", reason_code = "net.push")
def decide(exec):
    if exec.labels.get("ci") == "yes" and exec.user.name == "ada":
        return escalate("ci may", execution = permissions(network = "denied", write = ["/srv"]))
"#;

    #[test]
    fn says_what_and_why() {
        let (answer, text) = check(RULES, &["--", "/usr/bin/git", "push", "a\x1b[2J"]);
        assert_eq!(answer.expect("an answer"), CheckAnswer::Deny);
        assert_eq!(CheckAnswer::Deny.exit_code(), 4);
        assert!(
            text.contains("command   /usr/bin/git push $'a\\x1b[2J'\n"),
            "{text}"
        );
        assert!(text.contains("answer    deny\n"), "{text}");
        assert!(text.contains("code      net.push\n"), "{text}");
        assert!(
            text.contains("   run                    x.rules:2 (prefix git)\n"),
            "{text}"
        );
        assert!(
            text.contains("-> deny                   x.rules:3 (prefix git push): Ask first.\n"),
            "{text}"
        );
    }

    #[test]
    fn decide_gets_the_gate() {
        let rules = "def decide(exec):\n    return \"run\" if exec.gate == \"token:ci\" else deny(exec.gate)\n";
        let (answer, _) = check(rules, &["--gate", "token:ci", "--", "/x"]);
        assert_eq!(answer.expect("an answer"), CheckAnswer::Run);
        let (answer, text) = check(rules, &["--gate", "dns:ci", "--", "/x"]);
        assert_eq!(answer.expect("an answer"), CheckAnswer::Deny);
        assert!(text.contains("reason    dns:ci\n"), "{text}");
        let (_, text) = check(rules, &["--", "/x"]);
        assert!(text.contains("reason    anonymous\n"), "{text}");
    }

    #[test]
    fn decide_gets_labels_and_user() {
        let arguments = [
            "--label", "ci=yes", "--user", "ada:7", "--output", "json", "--", "/x",
        ];
        let (answer, text) = check(RULES, &arguments);
        assert_eq!(answer.expect("an answer"), CheckAnswer::Escalate);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["execution"]["write"], json!(["/srv"]));
        assert_eq!(json["matched"][0]["decided"], json!(true));
        let (answer, _) = check(RULES, &["--", "/usr/bin/git", "status"]);
        assert_eq!(answer.expect("an answer"), CheckAnswer::Run);
    }

    #[test]
    fn says_that_a_name_is_not_trusted_there() {
        let (answer, text) = check(RULES, &["--", "/tmp/git", "status"]);
        assert_eq!(answer.expect("an answer"), CheckAnswer::Deny);
        assert!(text.contains("note      rules for the name git"), "{text}");
    }

    #[test]
    fn looks_up_names_as_a_shell_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = |name: &str, mode| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, "").expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        place("a/tool", 0o644);
        place("b/tool", 0o755);
        let look =
            |name: &str| resolve(OsStr::new(name), directory.path(), Some(OsStr::new("a:b")));
        assert_eq!(
            look("tool").expect("found"),
            directory.path().join("b/tool")
        );
        assert_eq!(
            look("./tool").expect("a path"),
            directory.path().join("./tool")
        );
        assert!(matches!(look("other"), Err(CheckError::NotFound { .. })));
        assert!(matches!(look(""), Err(CheckError::NotFound { .. })));
    }

    #[test]
    fn rules_that_cannot_be_used_are_an_error_of_their_own() {
        let (answer, _) = check("prefix_rule([])", &["--", "/x"]);
        assert_eq!(answer.expect_err("an error").exit_code(), 2);
    }
}

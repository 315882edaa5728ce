//! Sessions on record, judged by other rules, and rules proposed from them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells};
use crate::process::{self, Done, EXECGATE, Running, wait_until};

in_both_shells! {
    what_other_rules_would_change_is_told_by_group,
    rules_see_of_the_record_what_they_saw_of_the_gate,
    what_the_record_lacks_is_not_guessed,
    proposed_rules_decide_a_session_as_it_was_decided,
    what_a_person_was_asked_and_what_was_monitored_is_told_apart,
    what_no_rules_were_asked_about_is_no_decision_of_theirs,
    nothing_on_record_drives_a_terminal_or_writes_rules,
}

const RULES: &str = r#"
prefix_rule(["expr"], name = "sums")
prefix_rule(["date"], "deny", justification = "No clocks.", reason_code = "clock", name = "clocks")
prefix_rule(["install", "-d"], "escalate", name = "outside")
fallback("run")
"#;

/// `execgate replay` or `suggest`, of the scenario's store unless the arguments say otherwise.
#[track_caller]
fn operate(gate: &Gate, arguments: &[&str]) -> Done {
    let mut command = Command::new(EXECGATE);
    command.args(arguments);
    gate.settle(&mut command);
    command.env("EXECGATE_POLICYD_DATA", gate.path("data"));
    process::run(&mut command)
}

fn written(gate: &Gate, name: &str, content: &str) -> String {
    let path = gate.path(name);
    std::fs::write(&path, content).expect("a file");
    path.to_str().expect("text").to_owned()
}

#[track_caller]
fn json(done: &Done) -> Value {
    serde_json::from_str(&done.output()).expect("JSON")
}

fn what_other_rules_would_change_is_told_by_group(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES).option(["--label", "job=42"]);
    gate.exec("i=0; while test $i -lt 30; do expr $i; i=$((i+1)); done; date; install -d made")
        .exits(0);
    gate.exec("expr 1 + 1; date").exits(1);
    let same = gate.path("rules.star");
    let same = same.to_str().expect("text");
    let done = operate(&gate, &["replay", "--rules", same]);
    done.exits(0).says_nothing();
    assert!(
        done.output().contains("0 changed, 0 not judged"),
        "{}",
        done.output()
    );

    let other = RULES
        .replace(
            "prefix_rule([\"expr\"], name = \"sums\")",
            "prefix_rule([\"expr\"], \"deny\", justification = \"No sums.\")",
        )
        .replace(
            "\"escalate\", name",
            "\"escalate\", execution = \"turn_default\", name",
        );
    let other = written(&gate, "other.star", &other);
    let done = operate(&gate, &["replay", "--rules", &other]);
    done.exits(1).says_nothing();
    let output = done.output();
    assert!(
        output.starts_with("31 execs of /usr/bin/expr: run -> deny\n"),
        "{output}"
    );
    assert!(output.contains("  was   run  sums\n"), "{output}");
    assert!(
        output.contains("  now   deny  other.star:2: No sums.\n"),
        "{output}"
    );
    // More often than not the terms are what matters.
    assert!(
        output.contains(
            "1 exec of /usr/bin/install: escalate (unsandboxed) -> escalate (turn_default)\n"
        ),
        "{output}"
    );
    let all = json(&operate(
        &gate,
        &["replay", "--rules", &other, "--output", "json"],
    ));
    assert_eq!(all["changed"], 32, "{all}");
    assert_eq!(all["not_judged"], 0, "{all}");
    assert_eq!(all["changes"][0]["count"], 31, "{all}");
    assert_eq!(all["changes"][0]["examples"][0]["exec_id"], 1, "{all}");

    // The same from exported lines, in a file and in a pipe.
    for listed in [&["--export"][..], &["--output", "json", "--limit", "1000"]] {
        let lines = operate(&gate, &[&["audit"], listed].concat());
        let lines = written(&gate, "lines", &lines.exits(0).output());
        let from = json(&operate(
            &gate,
            &[
                "replay", "--rules", &other, "--from", &lines, "--output", "json",
            ],
        ));
        assert_eq!(from, all);
    }

    filters_choose(&gate, &other);
    // As execgate-policyd --monitor: nothing is denied, and that it would be is news.
    let done = operate(&gate, &["replay", "--rules", &other, "--monitor"]);
    done.exits(1);
    assert!(
        done.output().contains("run -> run (would deny)"),
        "{}",
        done.output()
    );
    trouble_is_told(&gate, same);
}

/// What takes long says how far it is, in lines of their own where nobody's terminal is.
#[test]
fn whoever_waits_for_a_replay_is_told_how_far_it_is() {
    let directory = crate::gate::directory();
    let rules = directory.path().join("x.rules");
    std::fs::write(&rules, "fallback(\"run\")").expect("a file");
    let mut command = Command::new(EXECGATE);
    command.arg("replay").arg("--rules").arg(&rules);
    command.args(["--from", "-", "--output", "json"]);
    let mut running = Running::start(&mut command);
    let mut execs = 0_u64;
    wait_until("how far it is", || {
        execs += 1;
        running.tell(&format!(
            r#"{{"session":"{execs:032}","exec_id":1,"program":"/usr/bin/true","argv":["true"],"verdict":"run","code":"verdict"}}"#
        ));
        running.stderr().contains(" execs so far\n")
    });
    let done = running.done();
    // Nothing else is said, and no more than was read by then.
    for line in done.errors().lines() {
        let said = line.strip_suffix(" execs so far");
        let said = said.and_then(|number| number.parse().ok());
        assert!(
            said.is_some_and(|said: u64| (1..=execs).contains(&said)),
            "{done}"
        );
    }
    let told = json(done.exits(0));
    assert_eq!(
        (&told["execs"], &told["unchanged"]),
        (&execs.into(), &execs.into()),
        "{told}"
    );
}

fn filters_choose(gate: &Gate, other: &str) {
    let first = gate.list(&[])[0].text("session").to_owned();
    for (filter, execs) in [
        (&["--session", &first, "--program", "expr"][..], 30),
        (&["--program", "/usr/bin/date"], 2),
        (&["--label", "job=42", "--verdict", "escalate"], 1),
        (&["--label", "job=43"], 0),
        (&["--gate", "token:nobody"], 0),
        (&["--since", "1h", "--code", "clock"], 2),
        (&["--since", "2100-01-01T00:00:00Z"], 0),
        (&["--until", "2020-01-01T00:00:00Z"], 0),
        (&["--until", "2100-01-01T00:00:00Z", "--program", "date"], 2),
    ] {
        for from in [&[][..], &["--from", "../lines"]] {
            let arguments = [
                &["replay", "--rules", other, "--output", "json"],
                filter,
                from,
            ];
            let told = json(&operate(gate, &arguments.concat()));
            assert_eq!(told["execs"], execs, "{filter:?} {from:?}: {told}");
        }
    }
}

fn trouble_is_told(gate: &Gate, same: &str) {
    let wrong = written(gate, "wrong.star", "prefix_rule([])\n");
    let nonsense = written(
        gate,
        "nonsense",
        "{\"session\":\"x\",\"exec_id\":1,\"argv\":7}\n",
    );
    for (arguments, says) in [
        (&["--rules", &wrong][..], "wrong.star:1"),
        (&["--rules", "/nonexistent"], "/nonexistent"),
        (
            &["--rules", same, "--data", "/nonexistent"],
            "no event store",
        ),
        (&["--rules", same, "--from", "/nonexistent"], "/nonexistent"),
        (
            &["--rules", same, "--from", &nonsense],
            "nonsense:1: `argv`",
        ),
        (&["--rules", same, "--since", "never"], "age"),
        (&[], "--rules"),
    ] {
        let done = operate(gate, &[&["replay"], arguments].concat());
        done.exits(2);
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
}

/// Whatever rules can look at, as the name of the rule that decides.
const ALL_FACTS: &str = "def decide(exec):\n    return run(name = str(exec))\n";

fn rules_see_of_the_record_what_they_saw_of_the_gate(shell: &Shell) {
    let gate = Gate::with_rules(shell, ALL_FACTS).option([
        "--label",
        "job=42",
        "--label",
        "team=ü",
        "--redact",
        "hunt[a-z0-9]*",
    ]);
    std::fs::write(gate.path("work/script"), "#!/bin/cat -u\ntext\n").expect("a script");
    std::fs::create_dir(gate.path("work/d")).expect("a directory");
    gate.exec(
        "chmod 755 script; ./script; cd d; export NEW=1; expr \"$(printf '\\377')\" = hunter2; \
         date -d \"\"; /bin/sh -c 'exec true'; touch $'two\\nlines'; cd ..; mkdir $'\\377'; cd $'\\377'; true; expr 3",
    );
    assert!(gate.list(&[]).len() > 7);
    let rules = gate.path("rules.star");
    let rules = rules.to_str().expect("text");
    let lines = operate(&gate, &["audit", "--export"]);
    let lines = written(&gate, "lines", &lines.exits(0).output());
    for from in [&[][..], &["--from", &lines]] {
        let told = operate(
            &gate,
            &[&["replay", "--rules", rules, "--output", "json"], from].concat(),
        );
        told.exits(0).says_nothing();
        let told = json(&told);
        assert_eq!(told["not_judged"], 0, "{told}");
        assert_eq!(told["unchanged_by_another_rule"], 0, "{told}");
        assert_eq!(told["redacted"], 1, "{told}");
    }
}

fn what_the_record_lacks_is_not_guessed(shell: &Shell) {
    let gate = Gate::with_rules(shell, "fallback(\"run\")");
    gate.exec("date; export CI_JOB=1; expr 1; expr 2").exits(0);
    let told = |rules: &str| {
        let rules = written(&gate, "other.star", rules);
        json(&operate(
            &gate,
            &["replay", "--rules", &rules, "--output", "json"],
        ))
    };
    let why = |told: &Value| told["not_judged_because"].clone();
    let decide = "def decide(exec):\n    return deny() if exec.environment.get(\"CI_JOB\") == \"1\" else run()\n";
    let values = format!("request_environment([\"CI_JOB\"])\n{decide}");
    let known = told(&values);
    assert_eq!(
        (&known["unchanged"], &known["not_judged"]),
        (&1.into(), &2.into()),
        "{known}"
    );
    assert_eq!(why(&known)[0]["why"], "no-values");
    // Nothing could look at them.
    let unused = told("request_environment([\"CI_JOB\"])\nfallback(\"run\")");
    assert_eq!(unused["unchanged"], 3, "{unused}");
    let digests = told("request_digests()\ndef decide(exec):\n    return run()\n");
    assert_eq!(digests["not_judged"], 3, "{digests}");
    assert_eq!(why(&digests)[0]["why"], "no-digest");

    // A store on this machine has all of a long command; a service, as in a line of its, tells only the size with each exec.
    let long = format!("date; : {}", "x".repeat(20 << 10));
    gate.exec(&long).exits(0);
    let decide = "def decide(exec):\n    return run() if exec.session.command else None\n";
    let looks = told(decide);
    let counts = (&looks["unchanged"], &looks["not_judged"]);
    assert_eq!(counts, (&4.into(), &0.into()), "{looks}");
    let listed = operate(&gate, &["audit", "--output", "json"]).output();
    let lines = written(&gate, "listed", &listed);
    let rules = written(&gate, "other.star", decide);
    let looks = json(&operate(
        &gate,
        &[
            "replay", "--rules", &rules, "--from", &lines, "--output", "json",
        ],
    ));
    let counts = (&looks["unchanged"], &looks["not_judged"]);
    assert_eq!(counts, (&3.into(), &1.into()), "{looks}");
    assert_eq!(why(&looks)[0]["why"], "no-command");

    // The session's beginning was removed.
    let lines = operate(&gate, &["audit", "--export", "--program", "expr"]).output();
    let without: Vec<_> = lines
        .lines()
        .map(|line| {
            let mut exec: Value = serde_json::from_str(line).expect("JSON");
            exec.as_object_mut()
                .expect("an object")
                .remove("session_facts");
            exec.to_string()
        })
        .collect();
    let without = without.join("\n") + "\n";
    let lines = written(&gate, "lines", &without);
    let rules = written(&gate, "other.star", "def decide(exec):\n    return run()\n");
    let arguments = [
        "replay", "--rules", &rules, "--from", &lines, "--output", "json",
    ];
    let told = json(&operate(&gate, &arguments));
    assert_eq!(why(&told)[0]["why"], "no-session", "{told}");
    let rules = written(&gate, "other.star", "prefix_rule([\"expr\", \"1\"])");
    let arguments = [
        "replay", "--rules", &rules, "--from", &lines, "--output", "json",
    ];
    let told = json(&operate(&gate, &arguments));
    assert_eq!(
        (&told["unchanged"], &told["changed"]),
        (&1.into(), &1.into()),
        "{told}"
    );
}

/// Verdicts of all kinds, for programs of all kinds.
const MANY: &str = r#"
prefix_rule([["expr", "cat", "touch", "mkdir", "ls", "true", "false", "test", "printf", "tr", "head", "wc", "sort",
    "sed", "awk", "mawk", "find", "xargs", "env", "sh", "tar", "nice", "git", "gcc", "rm", "[", "basename", "chmod"]])
prefix_rule(["git", "push"], "deny", justification = "Ask a maintainer.", name = "no pushing", reason_code = "net.push")
prefix_rule(["git", "config"], "deny")
prefix_rule(["date"], "deny", justification = "No clocks.")
prefix_rule(["id"], "ask", justification = "Who are you?", name = "who")
prefix_rule(["uname"], "escalate", execution = "unsandboxed", set_environment = {"LANG": "C"}, unset_environment = ["X*"],
    name = "systems")
prefix_rule(["uname", "-a"], "deny", name = "not all")
prefix_rule(["hostname"], "escalate", execution = "turn_default", unprotected = "allow")

def decide(exec):
    if exec.name == "cat" and "secret" in exec.args:
        return deny("That is secret.", name = "secrets")
    if exec.basename == "tool":
        return run(name = "our tool")
    return None
"#;

const SESSION: &str = r#"
printf '#!/bin/sh\necho tool "$@"\n' > tool; chmod 755 tool; ./tool; ./tool a; ./tool --flag 'b c'
cat tool; cat secret; cat tool secret; cat; ls -la; ls; mkdir -p d/e; touch d/x d/y
expr 1 + 1; expr 2 '*' 3; expr length "a\"]), decision=\"allow\""
date; date +%s; uname; uname -s; uname -a; hostname; id; id -u
git init -q .; git status -s; git log --oneline; git -c core.pager=cat log; git push origin main; git config a.b
git commit --allow-empty -qm 'first one'; git status; git --version; git grep -O x
find . -name 'x*'; find . -type f; find d -exec true ';'; find d -name x -delete
env A=1 true; env; xargs -a /dev/null true; sh -c 'true; false'; sh -c 'expr 5'; nice -n 1 true
tar -cf a.tar d; tar -tf a.tar; tar -xf a.tar --checkpoint-action=exec=true --checkpoint=1; sed -n 1p tool; awk 'BEGIN { print 1 }'
sort tool; sort -u tool; sort --compress-program=cat tool; printf '%s\n' "$(printf 'a\nb')"; expr "$(printf '\033[2J\007')" = x
gcc --version; head -c 1 tool; wc -l tool; tr a b < tool; basename /a/b; touch $'new\nline' 'quote"s' "it's" '#x' '\back' 'ünïcödé'
touch $'\377bytes'; rm -f 'quote"s'; no_such_program; /usr/bin/nohup true; nohup true
true; true; true; i=0; while test $i -lt 20; do expr $i + 1; i=$((i+1)); done
exit 0
"#;

fn proposed_rules_decide_a_session_as_it_was_decided(shell: &Shell) {
    let gate = Gate::with_rules_on_a_socket(shell, MANY);
    gate.exec(SESSION);
    let execs = gate.list(&[]);
    assert!(execs.len() > 75, "{}", execs.len());
    let session = execs[0].text("session").to_owned();
    let suggested = operate(&gate, &["suggest", "--session", &session]);
    suggested.exits(0).says_nothing();
    let rules = written(&gate, "suggested.rules.star", &suggested.output());
    let check = |code, command: &[&str]| {
        let mut arguments = vec!["check", "--rules", &rules, "--"];
        arguments.extend(command);
        operate(&gate, &arguments).exits(code);
    };
    check(0, &["cat", "another"]);
    check(4, &["cat", "secret"]);
    check(4, &["git", "push", "origin", "main"]);
    check(4, &["sh", "-c", "another"]);
    check(4, &["env", "sh"]);
    check(4, &["find", ".", "-exec", "sh", ";"]);
    check(3, &["uname", "-s"]);
    check(4, &["uname", "-s", "-a"]);
    check(5, &["id"]);
    check(0, &["git", "status", "--long"]);
    check(4, &["git", "-c", "core.pager=sh", "log"]);

    let lines = operate(&gate, &["audit", "--export"]);
    let lines = written(&gate, "lines", &lines.exits(0).output());
    for from in [&[][..], &["--from", &lines]] {
        let arguments = [
            &[
                "replay",
                "--rules",
                &rules,
                "--session",
                &session,
                "--output",
                "json",
            ],
            from,
        ];
        let told = operate(&gate, &arguments.concat());
        let told_json = json(&told);
        assert_eq!(
            told_json["changed"],
            0,
            "{told_json}\n{}",
            suggested.output()
        );
        assert_eq!(told_json["not_judged"], 0, "{told_json}");
        told.exits(0);
        let again = operate(&gate, &[&["suggest", "--session", &session], from].concat());
        assert_eq!(again.output(), suggested.output());
    }
    let object = json(&operate(
        &gate,
        &["suggest", "--session", &session, "--output", "json"],
    ));
    assert_eq!(object["rules"], suggested.output());
    assert_eq!(object["answered_otherwise"], 0);

    // A gate decides by them as they say.
    gate.write_rules(&suggested.output());
    gate.restart_policyd();
    gate.exec(SESSION);
    let rerun = gate.list(&[]);
    let verdicts = |execs: &[crate::gate::Exec]| {
        let of = |exec: &crate::gate::Exec| {
            (
                exec.text("program").to_owned(),
                exec.text("verdict").to_owned(),
            )
        };
        let mut verdicts: Vec<_> = execs
            .iter()
            .map(of)
            .filter(|(program, _)| !program.split('/').rev().skip(1).any(|part| part == "work"))
            .collect();
        verdicts.sort();
        verdicts
    };
    let before = execs.len();
    assert_eq!(verdicts(&rerun[before..]), verdicts(&execs));
}

fn what_a_person_was_asked_and_what_was_monitored_is_told_apart(shell: &Shell) {
    let rules = r#"
prefix_rule(["id"], "ask")
prefix_rule(["expr"], "deny", mode = "monitor", name = "watched")
fallback("run")
"#;
    let gate = Gate::with_operators(shell, rules, &["ada"]);
    let running = gate.start("expr 1; id; date");
    let mut found = String::new();
    process::wait_until("an approval", || {
        let list = ["approvals", "list", "--output", "json"];
        found = process::run(&mut gate.operate("ada.token", &list)).output();
        !found.is_empty()
    });
    let found: Value = serde_json::from_str(found.trim()).expect("JSON");
    let id = found["approval"].as_str().expect("an id");
    process::run(&mut gate.operate("ada.token", &["approvals", "approve", id])).exits(0);
    running.done().exits(0);
    let replayed = |rules: &str| {
        let rules = written(&gate, "other.star", rules);
        json(&operate(
            &gate,
            &["replay", "--rules", &rules, "--output", "json"],
        ))
    };
    let same = replayed(rules);
    assert_eq!(
        (&same["unchanged"], &same["changed"]),
        (&3.into(), &0.into()),
        "{same}"
    );
    // That it isn't monitored any more changes nothing that was done.
    let without = replayed("prefix_rule([\"id\"], \"ask\")\nfallback(\"run\")");
    assert_eq!(without["changed"], 0, "{without}");
    let enforced = replayed(&rules.replace(", mode = \"monitor\"", ""));
    assert_eq!(
        enforced["changed_verdicts"][0]["was"], "run (would deny)",
        "{enforced}"
    );
    assert_eq!(enforced["changed_verdicts"][0]["now"], "deny", "{enforced}");
    let unasked = replayed("fallback(\"run\")");
    assert_eq!(
        unasked["changed_verdicts"][0]["was"], "ask, to run",
        "{unasked}"
    );

    would_be_asked(&gate);

    // What is proposed is what would have been decided, or what ran.
    for (monitor, code) in [(&[][..], 4), (&["--monitor"], 0)] {
        let suggested = operate(&gate, &[&["suggest"], monitor].concat());
        suggested.exits(0);
        let rules = written(&gate, "other.star", &suggested.output());
        operate(&gate, &["check", "--rules", &rules, "--", "expr", "1"]).exits(code);
        operate(&gate, &["check", "--rules", &rules, "--", "id"]).exits(5);
        let replay = operate(&gate, &["replay", "--rules", &rules]);
        replay.exits(i32::from(code != 0));
    }
}

/// What would be asked is told as the person would be asked, though nobody is here.
fn would_be_asked(gate: &Gate) {
    let asking = written(
        gate,
        "asking.star",
        "prefix_rule([\"date\"], \"ask\", asks = \"the release team\", within = \"2m\", name = \"clock\",\n    \
         execution = \"unsandboxed\", justification = \"It tells.\", reason_code = \"time\")\n\
         prefix_rule([\"expr\"], \"ask\", mode = \"monitor\", name = \"watched\")\n\
         prefix_rule([\"id\"], \"ask\", name = \"id\")\nfallback(\"run\")",
    );
    let arguments = ["replay", "--rules", &asking, "--output", "json"];
    let done = operate(gate, &arguments);
    let asked = json(done.exits(1));
    let change = |program: &str| {
        let changes = asked["changes"].as_array().expect("a list");
        let mut changes = changes.iter();
        let change = changes.find(|change| change["program"] == program);
        change.unwrap_or_else(|| panic!("{asked}"))["now"].clone()
    };
    assert_eq!(
        change("/usr/bin/date"),
        serde_json::json!({
            "verdict": "ask, to escalate", "rule": "clock",
            "reason": "It tells. (asks the release team, within 2m)", "reason_code": "time",
        })
    );
    assert_eq!(
        change("/usr/bin/expr"),
        serde_json::json!({
            "verdict": "run (would ask, to run)", "rule": "watched",
            "reason": "asks an operator, within 5m", "reason_code": null,
        })
    );
    // The question that was asked is the same one, by another name of its rule.
    assert_eq!(asked["unchanged_by_another_rule"], 1, "{asked}");
    assert!(!done.output().contains("approval.unavailable"), "{done}");

    // Asking the service comes to the same, for who may read its record.
    let by_service = process::run(&mut gate.operate("ada.token", &arguments));
    assert_eq!(json(by_service.exits(1)), asked);
    let mut unknown = gate.operate("rules.star", &arguments);
    process::run(&mut unknown).exits(2).prints("");
    let mut nowhere = Command::new(EXECGATE);
    nowhere
        .args(arguments)
        .args(["--service", "http://127.0.0.1:1"]);
    gate.settle(&mut nowhere);
    process::run(&mut nowhere).exits(5).says("127.0.0.1:1");
}

fn what_no_rules_were_asked_about_is_no_decision_of_theirs(shell: &Shell) {
    // A rule may use any reason code.
    let rules =
        "prefix_rule([\"date\"], \"deny\", reason_code = \"gate.rate_limited\")\nfallback(\"run\")";
    let gate = Gate::with_rules_on_a_socket(shell, rules);
    gate.exec("date").exits(1);
    std::fs::write(gate.path("execs-per-second"), "1").expect("a file");
    gate.restart_policyd();
    // Until one is too many.
    gate.exec("while ls >/dev/null; do :; done; echo over")
        .prints("over\n")
        .says("commands a second");
    let execs = gate.list(&[]);
    let limited = execs
        .iter()
        .filter(|exec| exec.name() == "ls" && exec.text("verdict") == "deny")
        .count();
    assert!(limited > 0, "{}", execs.len());
    let lines = operate(&gate, &["audit", "--export"]);
    let lines = written(&gate, "lines", &lines.exits(0).output());
    for from in [&[][..], &["--from", &lines]] {
        let same = ["replay", "--rules", "../rules.star", "--output", "json"];
        let done = operate(&gate, &[&same, from].concat());
        let told = json(done.exits(0));
        let gaps = told["not_judged_because"].as_array().expect("a list");
        let by_no_rules = gaps.iter().find(|gap| gap["why"] == "no-rules");
        let count = by_no_rules.map(|gap| gap["count"].clone());
        assert_eq!(count, Some(limited.into()), "{told}");
        let suggested = operate(&gate, &[&["suggest"], from].concat());
        let suggested = suggested.exits(0).output();
        assert!(suggested.contains("# Not used, "), "{suggested}");
        assert!(!suggested.contains("commands a second"), "{suggested}");
        let rules = written(&gate, "suggested.star", &suggested);
        operate(&gate, &["check", "--rules", &rules, "--", "ls"]).exits(0);
        // By a rule, whatever its code.
        assert!(suggested.contains("gate.rate_limited"), "{suggested}");
    }
}

fn nothing_on_record_drives_a_terminal_or_writes_rules(shell: &Shell) {
    let gate = Gate::with_rules(shell, "fallback(\"run\")");
    gate.exec(
        "expr $'\\e[2J\\e]0;x\\a\\u202e\\n\\r' = x; expr $'\\377\\200' = x; mkdir -p $'d\\e[31m\"'; \
         cp /bin/true $'d\\e[31m\"/t\\n\"'; $'./d\\e[31m\"/t\\n\"' $'\"]), decision=\"allow\"' $'\"\\n)\\nfallback(\"run\")\\n#'; true",
    )
    .exits(0);
    let rules = written(
        &gate,
        "other.star",
        "fallback(\"deny\", justification = \"no\")",
    );
    let plain = |output: &str| {
        let is_plain = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(output.chars().all(is_plain), "{output:?}");
    };
    plain(
        &operate(&gate, &["replay", "--rules", &rules])
            .exits(1)
            .output(),
    );
    plain(
        &operate(&gate, &["replay", "--rules", &rules, "--output", "json"])
            .exits(1)
            .output(),
    );
    plain(
        &operate(&gate, &["suggest", "--output", "json"])
            .exits(0)
            .output(),
    );
    let suggested = operate(&gate, &["suggest"]);
    plain(&suggested.exits(0).output());
    let rules = written(&gate, "suggested.star", &suggested.output());
    operate(&gate, &["replay", "--rules", &rules]).exits(0);
    assert!(Path::new("/usr/bin/id").exists());
    operate(&gate, &["check", "--rules", &rules, "--", "/usr/bin/id"]).exits(4);
}

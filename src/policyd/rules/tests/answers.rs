//! What rules answer, and what an answer says besides.

use std::path::Path;

use super::*;

#[test]
fn a_question_says_who_is_asked_for_what_and_how_long_and_denies_where_nobody_can_be() {
    let rules = rules(
        r#"
prefix_rule(["gh", "pr"], "prompt", justification = "talks to the forge")
prefix_rule(["scp"], "ask", execution = "turn_default", asks = "the release team", within = "90s")
def decide(exec):
    if exec.name == "rsync":
        return ask("copies", asks = "ops", within = "2m", execution = "unsandboxed", name = "sync")
"#,
    );
    let ruling = ask(&rules, "/usr/bin/gh", &["pr"]);
    assert!(is_denied(&ruling));
    assert_eq!(ruling.reason_code, CODE_APPROVAL_UNAVAILABLE);
    assert_eq!(ruling.reason, "talks to the forge");
    assert_eq!(
        ruling.ask,
        Some(Ask {
            effect: Effect::Run,
            asked: None,
            within: std::time::Duration::from_secs(300),
        })
    );
    let ruling = ask(&rules, "/usr/bin/scp", &[]);
    assert_eq!(
        ruling.ask,
        Some(Ask {
            effect: Effect::Escalate(EscalationExecution::TurnDefault),
            asked: Some("the release team".to_owned()),
            within: std::time::Duration::from_secs(90),
        })
    );
    let ruling = ask(&rules, "/usr/bin/rsync", &[]);
    assert_eq!(
        (ruling.rule.as_str(), ruling.reason.as_str()),
        ("sync", "copies")
    );
    let asked = ruling.ask.expect("a question");
    assert_eq!(asked.asked.as_deref(), Some("ops"));
    assert_eq!(
        asked.effect,
        Effect::Escalate(EscalationExecution::Unsandboxed)
    );
}

#[test]
fn a_question_that_makes_no_sense_is_refused() {
    for (content, what) in [
        ("\"ask\", within = \"soon\"", "write a time"),
        ("\"ask\", within = \"0s\"", "no person is as quick"),
        ("\"ask\", within = \"25h\"", "24h at most"),
        ("\"ask\", asks = \" \"", "asks is empty"),
        ("\"run\", asks = \"ops\"", "belong to \"ask\" only"),
        ("\"deny\", within = \"1m\"", "belong to \"ask\" only"),
        ("\"ask\", execution = \"x\"", "execution is"),
    ] {
        let refusal = refusal(&format!("prefix_rule([\"make\"], {content})"));
        assert!(refusal.contains(what), "{content}: {refusal}");
    }
}

#[test]
fn escalations_say_how() {
    let rules = rules(
        r#"
P = permissions(network = "denied", read = ["/usr"], write = ["/srv/cache"])
prefix_rule(["a"], "escalate")
prefix_rule(["b"], "escalate", execution = "turn_default")
prefix_rule(["c"], "escalate", execution = P)
def decide(exec):
    if exec.name == "d":
        return escalate("because", execution = P, reason_code = "x.y", name = "d rule")
"#,
    );
    let execution = |name: &str| match ask(&rules, &format!("/bin/{name}"), &[]).decision {
        EscalationDecision::Escalate(execution) => execution,
        other => panic!("{other:?}"),
    };
    assert_eq!(execution("a"), EscalationExecution::Unsandboxed);
    assert_eq!(execution("b"), EscalationExecution::TurnDefault);
    let EscalationExecution::Permissions(permissions) = execution("c") else {
        panic!()
    };
    assert_eq!(permissions.network, NetworkAccess::Denied);
    assert_eq!(permissions.readable, [Path::new("/usr")]);
    assert_eq!(permissions.writable, [Path::new("/srv/cache")]);
    assert_eq!(
        execution("d"),
        EscalationExecution::Permissions(permissions)
    );
    let ruling = ask(&rules, "/bin/d", &[]);
    assert_eq!(
        (
            ruling.rule.as_str(),
            ruling.reason.as_str(),
            ruling.reason_code.as_str()
        ),
        ("d rule", "because", "x.y")
    );
}

#[test]
fn escalations_have_terms() {
    use crate::model::{EnvironmentRules, EscalationTerms, NamePattern, Unprotected};
    let arguments = "unprotected = \"allow\", keep_environment = [\"LC_*\"], \
                     set_environment = {\"A\": \"b\"}, unset_environment = [\"X\"]";
    let expected = EscalationTerms {
        unprotected: Unprotected::Allowed,
        environment: EnvironmentRules {
            keep: vec![NamePattern(b"LC_*".to_vec())],
            unset: vec![NamePattern(b"X".to_vec())],
            set: vec![("A".into(), "b".into())],
        },
    };
    for file in [
        format!("def decide(exec):\n    return escalate({arguments})\n"),
        format!("prefix_rule([\"/sandbox/tool\"], \"escalate\", {arguments})\n"),
        format!("fallback(\"escalate\", {arguments})\n"),
    ] {
        let ruling = ask_about(&rules(&file), None, &["tool"]);
        assert_eq!(ruling.terms, expected, "{file}");
    }
    let ruling = ask_about(&rules("fallback(\"escalate\")"), None, &["tool"]);
    assert_eq!(ruling.terms, EscalationTerms::default());

    for (file, advice) in [
        (
            "prefix_rule([\"x\"], unprotected = \"allow\")",
            "belongs to \"escalate\"",
        ),
        (
            "fallback(\"deny\", keep_environment = [])",
            "belongs to \"escalate\"",
        ),
        (
            "fallback(\"escalate\", unprotected = \"yes\")",
            "write \"allow\"",
        ),
        (
            "fallback(\"escalate\", keep_environment = \"X\")",
            "write a list of names",
        ),
        (
            "fallback(\"escalate\", unset_environment = [\"A=b\"])",
            "without its value",
        ),
        (
            "fallback(\"escalate\", set_environment = [\"A\"])",
            "write names and values",
        ),
        (
            "fallback(\"escalate\", set_environment = {\"A\": 1})",
            "the value of A",
        ),
    ] {
        let error = Rules::parse("test.rules", file.to_owned()).expect_err(file);
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[test]
fn a_decision_that_is_left_out_is_called_run_where_it_fits_nothing() {
    for wrong in ["execution = \"unsandboxed\"", "asks = \"ops\""] {
        let refusal = refusal(&format!("prefix_rule([\"a\"], {wrong})"));
        assert!(refusal.contains("the decision \"run\""), "{refusal}");
    }
}

#[test]
fn the_fallback_decides_what_nothing_matches() {
    let allowing = rules("fallback(\"run\", \"open house\")\nprefix_rule([\"a\"], \"deny\")");
    let ruling = ask(&allowing, "/tmp/x", &[]);
    assert_eq!(ruling.decision, EscalationDecision::Run);
    assert_eq!(
        (ruling.rule.as_str(), ruling.reason.as_str()),
        ("fallback", "open house")
    );
    assert!(is_denied(&ask(&allowing, "/bin/a", &[])));
    let denying = rules("fallback(\"deny\")");
    let ruling = ask(&denying, "/tmp/x", &[]);
    assert_eq!(ruling.reason, "no rule matches /tmp/x");
    assert_eq!(ruling.reason_code, CODE_NO_MATCH);
}

#[test]
fn an_answer_says_how_it_may_be_used_again() {
    let rules = rules(
        r#"
prefix_rule(["make"], reuse = "10m")
prefix_rule(["gcc", "-c"], reuse = "1h30m", reuse_scope = "prefix")
prefix_rule(["ld"], "deny", reuse = "1s")
prefix_rule(["ld"], "run", reuse = "1h")
prefix_rule(["as"])
"#,
    );
    let minutes = |minutes: u64| std::time::Duration::from_secs(minutes * 60);
    let reuse = |program: &str| ask(&rules, program, &["-c", "x"]).reuse;
    assert_eq!(
        reuse("/usr/bin/make"),
        Some(OpinionReuse {
            valid_for: minutes(10),
            scope: OpinionReuseScope::Exec,
        })
    );
    assert_eq!(
        reuse("/usr/bin/gcc"),
        Some(OpinionReuse {
            valid_for: minutes(90),
            scope: OpinionReuseScope::Prefix(1),
        })
    );
    // The winner's.
    assert_eq!(
        reuse("/usr/bin/ld").map(|reuse| reuse.valid_for.as_secs()),
        Some(1)
    );
    assert_eq!(reuse("/usr/bin/as"), None);
    assert_eq!(reuse("/usr/bin/none"), None);

    let rules = self::rules("def decide(exec):\n    return deny(\"no\", reuse = \"10m\")\n");
    let ruling = ask(&rules, "/x", &[]);
    assert!(is_denied(&ruling));
    assert_eq!(ruling.reuse.map(|reuse| reuse.valid_for), Some(minutes(10)));
}

#[test]
fn a_time_of_reuse_that_makes_no_sense_is_refused() {
    for (content, what) in [
        ("reuse = \"soon\"", "write a time"),
        ("reuse = \"0s\"", "no time at all"),
        ("reuse = \"25h\"", "24h at most"),
        ("reuse_scope = \"prefix\"", "without reuse"),
        ("reuse = \"1m\", reuse_scope = \"any\"", "write \"exec\""),
        ("decision = \"prompt\", reuse = \"1m\"", "leave it out"),
    ] {
        let refusal = refusal(&format!("prefix_rule([\"make\"], {content})"));
        assert!(refusal.contains(what), "{content}: {refusal}");
    }
    let rules = rules("def decide(exec):\n    return run(reuse = \"soon\")\n");
    let ruling = ask(&rules, "/x", &[]);
    assert!(is_denied(&ruling), "{ruling:?}");
    assert_eq!(ruling.reuse, None);
}

#[test]
fn an_answer_for_a_prefix_must_be_the_answer_to_all_of_it() {
    let with = |others: &str| {
        format!(
            "prefix_rule([\"git\", [\"log\", \"push\"]], reuse = \"1m\", reuse_scope = \"prefix\")\n{others}"
        )
    };
    for fine in [
        "",
        // As strict, and the same.
        "prefix_rule([\"git\", \"log\", \"-1\"], \"run\")",
        // Less strict.
        "prefix_rule([\"git\", \"push\", \"-f\"], \"escalate\")",
        // Of other commands.
        "prefix_rule([\"git\", \"pull\", \"-f\"], \"deny\")\nprefix_rule([\"hg\", \"push\", \"-f\"], \"deny\")",
        // Wins for all of it, or for other first words.
        "prefix_rule([\"git\"], \"deny\")",
        "prefix_rule([\"git\", \"push\"], \"deny\")",
    ] {
        rules(&with(fine));
    }
    for wrong in [
        "prefix_rule([\"git\", \"push\", \"-f\"], \"deny\")",
        "prefix_rule([[\"hg\", \"git\"], [\"x\", \"push\"], \"-f\", \"y\"], \"prompt\")",
        "prefix_rule([\"/usr/bin/git\", \"log\", \"-1\"], \"deny\")",
    ] {
        let refusal = refusal(&with(wrong));
        assert!(refusal.contains("test.rules:2 says otherwise"), "{refusal}");
    }
    let refusal = refusal(&with("def decide(exec):\n    return None\n"));
    assert!(refusal.contains("decide() may say otherwise"), "{refusal}");
}

#[test]
fn a_monitored_rule_is_recorded_and_changes_nothing() {
    let rules = Rules::parse(
        "x.rules",
        r#"
prefix_rule(["rm"], "deny", name = "watched", mode = "monitor", reuse = "1m")
prefix_rule(["mv"], "deny", name = "watched", mode = "monitor")
prefix_rule(["mv"], "escalate", name = "moves")
prefix_rule(["cp"], "deny", name = "watched", mode = "monitor")
prefix_rule(["cp"], "deny", name = "enforced", mode = "enforce")
prefix_rule(["ls"], "run", name = "watched", mode = "monitor")
prefix_rule(["dd"], "escalate", name = "watched", mode = "monitor")
fallback("deny")
"#
        .to_owned(),
    )
    .expect("rules");
    let rm = ruled(&rules, "/usr/bin/rm");
    assert_eq!(rm.decision, EscalationDecision::Run);
    assert_eq!((&*rm.rule, rm.reuse), ("watched", None));
    assert!(rm.monitored.as_ref().is_some_and(denies));
    let mv = ruled(&rules, "/usr/bin/mv");
    assert!(matches!(mv.decision, EscalationDecision::Escalate(_)));
    assert!(mv.monitored.as_ref().is_some_and(denies));
    let cp = ruled(&rules, "/usr/bin/cp");
    assert!(denies(&cp.decision));
    assert_eq!((&*cp.rule, cp.monitored), ("enforced", None));
    assert_eq!(ruled(&rules, "/usr/bin/ls").monitored, None);
    let dd = ruled(&rules, "/usr/bin/dd");
    assert_eq!(dd.decision, EscalationDecision::Run);
    assert!(matches!(
        dd.monitored,
        Some(EscalationDecision::Escalate(_))
    ));
    assert!(denies(&ruled(&rules, "/usr/bin/no").decision));

    let rules = rules.in_mode(RuleMode::Monitor);
    for file in ["/usr/bin/cp", "/usr/bin/no"] {
        let ruling = ruled(&rules, file);
        assert_eq!(ruling.decision, EscalationDecision::Run);
        assert!(ruling.monitored.as_ref().is_some_and(denies), "{file}");
    }
    let error = Rules::parse("x.rules", "prefix_rule([\"a\"], mode = \"off\")".to_owned());
    assert!(
        error
            .expect_err("refused")
            .to_string()
            .contains("x.rules:1:")
    );
}

//! The console, in a real browser: `tests/support/browser.py` drives Chromium, by WebDriver.

use std::path::Path;
use std::process::Command;

use crate::gate::Gate;
use crate::machine::{self, Shell, available, in_shell};
use crate::process::Running;

const RULES: &str = r#"
prefix_rule(["printf", "marker-that-waits"], "ask", asks = "the release team", within = "10m",
            justification = "Releases are announced.")
prefix_rule(["rm"], "deny", justification = "Nothing is removed here.")
fallback("run")
"#;

/// Begins a scenario of a browser whose user has the token of `name`.
fn browser(gate: &Gate, scenario: &str, name: &str) -> Option<Running> {
    let there = ["chromium", "chromedriver"]
        .iter()
        .all(|program| Path::new("/usr/bin").join(program).exists());
    if !available(
        there,
        "Chromium and chromedriver (apt-get install chromium chromium-driver)",
    ) {
        return None;
    }
    let token = std::fs::read_to_string(gate.path(&format!("{name}.token"))).expect("a token");
    let mut command = Command::new("python3");
    command
        .arg(machine::repository().join("tests/support/browser.py"))
        .args([scenario, &gate.console(), token.trim()]);
    Some(Running::start(&mut command))
}

#[test]
fn a_person_logs_in_sees_an_exec_appear_approves_one_and_sees_it_go_on() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]).option(["--label", "team=web"]);
        let Some(mut browser) = browser(&gate, "approve", "ada") else {
            return;
        };
        browser.wait_for("logged-in\n");
        let running = gate.start(
            "/usr/bin/printf 'marker-that-runs\\n'; rm x; \
             /usr/bin/printf '%s\\n' later >/dev/null; \
             /usr/bin/printf marker-that-waits '<img src=x onerror=alert(1)>' 2>/dev/null; \
             /bin/sleep 600",
        );
        browser.wait_for("shown\n");
        assert!(
            running.stdout().contains("marker-that-waits"),
            "{}",
            running.stdout()
        );
        running.signal("TERM");
        browser.done().exits(0);
        let execs = gate.audit();
        assert_eq!(execs[3].text("reason_code"), "approval.approved");
        let approvals = crate::process::run(
            &mut gate.operate("ada.token", &["approvals", "list", "--state", "approved"]),
        );
        let list = approvals.exits(0).output();
        assert!(list.contains("marker-that-waits"), "{list}");
    });
}

#[test]
fn whose_token_is_taken_away_is_logged_out() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada", "bob"]);
        let Some(mut browser) = browser(&gate, "revoked", "ada") else {
            return;
        };
        browser.wait_for("logged-in\n");
        let lines = std::fs::read_to_string(gate.path("operators")).expect("lines");
        let others: String = lines
            .lines()
            .filter(|line| !line.starts_with("ada "))
            .map(|line| format!("{line}\n"))
            .collect::<Vec<_>>()
            .concat();
        std::fs::write(gate.path("operators"), others).expect("a file");
        browser.wait_for("logged-out\n");
        browser.done().exits(0);
    });
}

#[test]
fn an_auditor_sees_what_happens_and_decides_nothing() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["eve auditor"]);
        gate.exec("/usr/bin/printf marker-that-runs").exits(0);
        let Some(mut browser) = browser(&gate, "auditor", "eve") else {
            return;
        };
        browser.wait_for("looked\n");
        browser.done().exits(0);
    });
}

#[test]
fn thousands_of_execs_are_shown_as_they_come() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]);
        let Some(mut browser) = browser(&gate, "busy", "ada") else {
            return;
        };
        browser.wait_for("logged-in\n");
        gate.exec("for i in {1..1500}; do /bin/true $i; done; /bin/echo the-very-last")
            .exits(0);
        browser.tell("the-very-last");
        browser.wait_for("quick");
        browser.done().exits(0);
    });
}

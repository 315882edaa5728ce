//! The console, in a real browser: `tests/support/browser.py` drives Chromium, by WebDriver. And what it says to
//! requests as browsers send them for other pages.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use std::sync::Arc;
use std::time::Duration;

use execgate::model::EscalationDecision;

use crate::approvals::{id, pending};
use crate::gate::Gate;
use crate::link_gate;
use crate::machine::{self, Shell, available, in_shell};
use crate::process::{PATIENCE, Running};

const RULES: &str = r#"
prefix_rule(["printf", ["marker-that-waits", "marker-that-waits-too"]], "ask", asks = "the release team", within = "10m",
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
    // Where what the page looks like is to be written, for people.
    if let Some(screenshots) = std::env::var_os("CONSOLE_SCREENSHOTS") {
        command.arg(screenshots);
    }
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
        let running = gate.start("/usr/bin/printf marker-that-runs; /bin/sleep 600");
        let Some(mut browser) = browser(&gate, "auditor", "eve") else {
            return;
        };
        browser.wait_for("looked\n");
        browser.done().exits(0);
        assert!(!running.is_over(), "an auditor ended a session");
    });
}

/// What a minute is to have, and how long there is between two execs.
const MINUTE: u64 = 10_000;
const BETWEEN: Duration = Duration::from_millis(6);

/// Asks about so many execs, by a gate's own client, and tells how they ended.
fn feed(url: String, execs: std::ops::RangeInclusive<u64>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let session = u8::try_from(execs.start() % 251).expect("a byte");
            let gate = Arc::new(link_gate::Gate::with_session(&url, session, |_| {}));
            let mut pace = tokio::time::interval(BETWEEN);
            let mut asking = tokio::task::JoinSet::new();
            for number in execs {
                pace.tick().await;
                let mut exec = link_gate::exec_of(number);
                exec.argv = vec!["git".into(), format!("number-{number}-").into()];
                let gate = Arc::clone(&gate);
                asking.spawn(async move {
                    let verdict = gate.ask_about(exec).verdict().await;
                    assert_eq!(verdict.decision, EscalationDecision::Run);
                    gate.tell(number);
                });
            }
            while let Some(asked) = asking.join_next().await {
                asked.expect("a verdict");
            }
            gate.end();
        });
    })
}

#[test]
fn ten_thousand_execs_a_minute_leave_the_page_quick_and_small() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]);
        let Some(mut browser) = browser(&gate, "flood", "ada") else {
            return;
        };
        browser.wait_for("logged-in\n");
        // More than the page keeps, before it is looked at first.
        let first = feed(gate.url().to_owned(), 1..=MINUTE * 6 / 10);
        first.join().expect("a feeder");
        let second = feed(gate.url().to_owned(), MINUTE * 6 / 10 + 1..=MINUTE);
        browser.tell(&format!("number-{}-", MINUTE * 6 / 10 + 77));
        browser.wait_for("half-seen\n");
        second.join().expect("a feeder");
        browser.tell(&format!("number-{MINUTE}-"));
        browser.wait_for("bounded");
        browser.done().exits(0);
    });
}

#[test]
fn rules_that_cannot_be_used_are_told_of_until_they_can() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]);
        let Some(mut browser) = browser(&gate, "broken", "ada") else {
            return;
        };
        browser.wait_for("logged-in\n");
        gate.write_rules("prefix_rule(['rm'], 'denied')\n");
        browser.wait_for("told\n");
        gate.policyd(|policyd| policyd.wait_for_log("can't be used"));
        gate.exec("/bin/true").exits(0);
        gate.write_rules(RULES);
        browser.wait_for("mended\n");
        browser.done().exits(0);
    });
}

#[test]
fn an_operator_ends_a_session_and_is_asked_before() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]);
        let running = gate.start("/bin/sleep 600; /bin/echo went-on");
        let Some(mut browser) = browser(&gate, "ending", "ada") else {
            return;
        };
        browser.wait_for("asked\n");
        assert!(!running.is_over(), "it ended before that was confirmed");
        browser.tell("go on");
        browser.wait_for("ended\n");
        let done = running.done();
        assert!(done.errors().contains("runs wild, 123"), "{done}");
        assert!(!done.output().contains("went-on"), "{done}");
        browser.done().exits(0);
    });
}

#[test]
fn what_a_decision_holds_for_is_said_by_the_page_and_nonsense_decides_nothing() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]);
        let Some(mut browser) = browser(&gate, "scopes", "ada") else {
            return;
        };
        browser.wait_for("logged-in\n");
        let waits = "/usr/bin/printf marker-that-waits";
        // The same in this session; what begins so in this one; and on this gate.
        for (scope, script, printed) in [
            (
                "session",
                format!("{waits}; {waits}; {waits} other; echo end"),
                "marker-that-waitsmarker-that-waits",
            ),
            (
                "session-prefix",
                format!("{waits} 1; {waits} 2; echo end"),
                "marker-that-waitsmarker-that-waitsend\n",
            ),
            (
                "gate-prefix",
                format!("{waits} 3; {waits} 4; echo end"),
                "marker-that-waitsmarker-that-waitsend\n",
            ),
        ] {
            let mut running = gate.start(&script);
            browser.wait_for(&format!("{scope}\n"));
            running.wait_for(printed);
            if scope == "session" {
                // Other arguments are another command.
                assert!(!running.is_over());
                running.signal("TERM");
                let list = ["approvals", "list", "--output", "json"];
                crate::process::wait_until("it is withdrawn", || {
                    let done = crate::process::run(&mut gate.operate("ada.token", &list));
                    done.exits(0).output().is_empty()
                });
            }
            drop(running);
            browser.tell("go on");
        }
        gate.exec(format!("{waits} 5")).exits(0);
        let running = gate.start("/usr/bin/printf marker-that-waits-too; echo status $?");
        browser.wait_for("refused\n");
        running.done().exits(0).prints("status 1\n");
        browser.done().exits(0);
    });
}

#[test]
fn a_command_is_seen_to_its_end_before_it_is_approved() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]);
        let Some(mut browser) = browser(&gate, "whole", "ada") else {
            return;
        };
        browser.wait_for("logged-in\n");
        let harmless = "--harmless ".repeat(600);
        let running = gate.start(&format!(
            "/usr/bin/printf marker-that-waits {harmless}--evil 2>/dev/null"
        ));
        browser.wait_for("scrolled\n");
        let other = gate.start("/usr/bin/printf marker-that-waits-too");
        browser.wait_for("approved\n");
        running.done().exits(0).prints("marker-that-waits");
        assert!(!other.is_over());
        browser.done().exits(0);
    });
}

#[test]
fn a_service_that_is_gone_is_told_of() {
    in_shell("bash", |shell: &Shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]);
        let running = gate.start("/bin/sleep 600 & /usr/bin/printf marker-that-waits");
        let Some(mut browser) = browser(&gate, "gone", "ada") else {
            return;
        };
        browser.wait_for("logged-in\n");
        gate.kill_policyd();
        browser.wait_for("told\n");
        browser.done().exits(0);
        drop(running);
    });
}

/// Sends one request with these lines of its head, and a body if it has one. Gives status, and all of the answer.
fn request(address: &str, line: &str, head: &[&str], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let head = head.iter().map(|line| format!("{line}\r\n"));
    let head = head.collect::<Vec<_>>().concat();
    write!(
        stream,
        "{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n{head}\r\n{body}",
        body.len()
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("{answer}")), answer)
}

#[test]
fn no_other_page_reads_or_decides_anything_with_a_persons_cookie() {
    const JSON: &str = "content-type: application/json";
    in_shell("bash", |shell| {
        let gate = Gate::with_console(shell, RULES, &["ada"]);
        let console = gate.console();
        let origin = console.trim_end_matches('/');
        let address = origin.trim_start_matches("http://");
        let own = format!("origin: {origin}");
        let token = std::fs::read_to_string(gate.path("ada.token")).expect("a token");
        let shown = serde_json::json!({ "token": token.trim() }).to_string();
        let (status, answer) = request(address, "POST /api/login", &[&own, JSON], &shown);
        assert_eq!(status, 200, "{answer}");
        let cookie = answer
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: ")?.split(';').next());
        let cookie = format!("cookie: {}", cookie.expect("a cookie"));

        let running = gate.start("/usr/bin/printf marker-that-waits");
        let approval = pending(&gate);
        let decide = format!("POST /api/approvals/{}", id(&approval));
        let approve = serde_json::json!({ "decision": "approve" }).to_string();
        // A form's, a script's, and that of a browser which says it in another way; from the same host as well.
        for page in [
            &["content-type: text/plain", &own][..],
            &[JSON, "origin: http://evil.example"],
            &[JSON, "origin: null"],
            &[JSON, "origin: http://127.0.0.1:1"],
            &[JSON, "sec-fetch-site: cross-site"],
            &[JSON, "sec-fetch-site: same-site"],
        ] {
            let head = [&[&*cookie][..], page].concat();
            let (status, answer) = request(address, &decide, &head, &approve);
            assert_eq!(status, 403, "{page:?}: {answer}");
            let (status, answer) = request(address, "GET /api/sessions", &head, "");
            let expected = if page.contains(&&*own) { 200 } else { 403 };
            assert_eq!(status, expected, "{page:?}: {answer}");
        }
        assert_eq!(id(&pending(&gate)), id(&approval));
        // A link on another page leads to this one; whatever is answered keeps other pages out of it.
        let by_a_link = "sec-fetch-site: cross-site";
        for (line, head, expected) in [
            ("GET /", vec![&*cookie, by_a_link], 200),
            ("GET /console.js", vec![], 200),
            ("GET /api/me", vec![&*cookie], 200),
            ("GET /api/me", vec![], 401),
            ("GET /nothing", vec![], 404),
            ("POST /api/logout", vec![], 403),
        ] {
            let (status, answer) = request(address, line, &head, "");
            assert_eq!(status, expected, "{line}: {answer}");
            for said in [
                "content-security-policy: default-src 'none'; script-src 'self';",
                "frame-ancestors 'none'",
                "x-content-type-options: nosniff",
                "x-frame-options: DENY",
                "referrer-policy: no-referrer",
                "cross-origin-opener-policy: same-origin",
                "cache-control: no-store",
            ] {
                assert!(answer.contains(said), "{line}, {said}: {answer}");
            }
        }
        // And the page itself decides.
        let head = [&*cookie, &own, "sec-fetch-site: same-origin", JSON];
        let (status, answer) = request(address, &decide, &head, &approve);
        assert_eq!(status, 200, "{answer}");
        running.done().exits(0).prints("marker-that-waits");
    });
}

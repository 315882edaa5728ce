//! What the console says to those who aren't its page: over raw connections, malformed, huge, half, and with other
//! credentials.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::place::{PATIENCE, Place, TWO};

/// A service with a console; the console's `HOST:PORT`.
fn served() -> (Place, String) {
    let place = Place::with(&["--output", "json", "--console", "127.0.0.1:0"]);
    let url = std::fs::read_to_string(place.path("console")).expect("an address");
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let address = address.to_owned();
    (place, address)
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Sends bytes on a connection of their own, and reads until it is closed: status, head and body.
fn send(address: &str, request: &[u8]) -> (u16, String) {
    let mut stream = connect(address);
    // A refusal may come before all is sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..length]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_default(), answer)
}

fn get(address: &str, path: &str, cookie: &str) -> (u16, String) {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n"
    );
    send(address, request.as_bytes())
}

fn post(address: &str, path: &str, cookie: &str, more: &str, body: &str) -> (u16, String) {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncookie: {cookie}\r\nconnection: close\r\n{more}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    send(address, request.as_bytes())
}

const JSON: &str = "content-type: application/json\r\n";

fn log_in(place: &Place, address: &str, name: &str) -> (u16, String) {
    let token = std::fs::read_to_string(place.path(name)).unwrap_or("unknown".to_owned());
    let body = serde_json::json!({ "token": token }).to_string();
    post(address, "/api/login", "", JSON, &body)
}

fn cookie(place: &Place, address: &str) -> String {
    let (status, answer) = log_in(place, address, "auditor");
    assert_eq!(status, 200, "{answer}");
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = line.and_then(|line| line.split(';').next());
    cookie.expect("a cookie").to_owned()
}

#[test]
fn who_isnt_logged_in_gets_the_page_alone() {
    let (place, address) = served();
    for name in ["gate", "nobody"] {
        let (status, answer) = log_in(&place, &address, name);
        assert_eq!(status, 401, "{name}: {answer}");
        assert!(!answer.contains("set-cookie"), "{answer}");
    }
    let other = format!("execgate={}", "0".repeat(64));
    for cookie in ["", "execgate", "execgate=", &other, "a=b;;=;execgate=%7f"] {
        for path in [
            "/api/me",
            "/api/events",
            "/api/execs",
            "/api/sessions",
            "/api/sessions/x",
            "/api/rules",
        ] {
            let (status, answer) = get(&address, path, cookie);
            assert_eq!(status, 401, "{path} {cookie}: {answer}");
        }
        for path in ["/api/approvals/x", "/api/sessions/x/terminate"] {
            let (status, answer) = post(&address, path, cookie, JSON, "{}");
            assert_eq!(status, 401, "{path} {cookie}: {answer}");
        }
    }
    let (status, page) = get(&address, "/", "");
    assert_eq!(status, 200);
    assert!(
        page.contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
    for path in [
        "/..%2f..%2fetc/passwd",
        "/../etc/passwd",
        "/api/nothing",
        "/%00",
    ] {
        let (status, _) = get(&address, path, "");
        assert_eq!(status, 404, "{path}");
    }
}

#[test]
fn who_logs_out_is_logged_out_and_nobody_else() {
    let (place, address) = served();
    let [own, other] = [0, 1].map(|_| cookie(&place, &address));
    let is_logged_in = |cookie: &str| match get(&address, "/api/me", cookie) {
        (200, _) => true,
        (401, _) => false,
        (status, answer) => panic!("{status}: {answer}"),
    };
    assert!(is_logged_in(&own) && is_logged_in(&other));
    // Another page's button does nothing.
    let evil = format!("{JSON}sec-fetch-site: cross-site\r\n");
    let (status, answer) = post(&address, "/api/logout", &own, &evil, "{}");
    assert_eq!(status, 403, "{answer}");
    assert!(is_logged_in(&own));
    let (status, answer) = post(&address, "/api/logout", &own, JSON, "{}");
    assert_eq!(status, 200, "{answer}");
    // The browser forgets it, and to keep it is of no use.
    assert!(answer.contains("set-cookie: execgate=; "), "{answer}");
    assert!(answer.contains("; Max-Age=0"), "{answer}");
    assert!(!is_logged_in(&own));
    assert!(is_logged_in(&other));
    // There is nothing left to end.
    let (status, answer) = post(&address, "/api/logout", &own, JSON, "{}");
    assert_eq!(status, 200, "{answer}");
    assert!(is_logged_in(&other));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_is_wrong() {
    let (place, address) = served();
    let cookie = cookie(&place, &address);
    let long = "x".repeat(5_000);
    for (query, says) in [
        ("label=team".to_owned(), "KEY=VALUE"),
        ("verdict=maybe".to_owned(), "verdict"),
        ("since=yesterday".to_owned(), "since"),
        ("since=-1".to_owned(), "since"),
        ("since=99999999999999999999999".to_owned(), "since"),
        ("since=18446744073709551615".to_owned(), "since"),
        ("limit=1001".to_owned(), "page_size"),
        ("limit=4294967295".to_owned(), "page_size"),
        ("limit=4294967296".to_owned(), "limit"),
        ("limit=many".to_owned(), "limit"),
        ("page=x".to_owned(), "page_token"),
        (format!("page={long}"), "page_token"),
        ("session=x%27%20OR%201".to_owned(), "session_id_prefix"),
        ("gate=somebody".to_owned(), "gate"),
        (format!("program={long}"), "program"),
        ("code=a%00b".to_owned(), "code"),
        ("nothing=1".to_owned(), "nothing"),
        ("program=%ff%fe".to_owned(), ""),
    ] {
        let (status, answer) = get(&address, &format!("/api/execs?{query}"), &cookie);
        let is_taken = says.is_empty() && status == 200;
        assert!(is_taken || status == 400, "{query}: {answer}");
        assert!(answer.contains(says), "{query}: {answer}");
    }
    for (path, expected) in [
        ("/api/sessions/x", 400),
        ("/api/sessions/%00", 400),
        (&*format!("/api/sessions/{}", "a".repeat(32)), 404),
        ("/api/sessions", 200),
        ("/api/execs?limit=1000", 200),
    ] {
        let (status, answer) = get(&address, path, &cookie);
        assert_eq!(status, expected, "{path}: {answer}");
    }
    let evil = "sec-fetch-site: cross-site\r\n";
    for (more, body, expected) in [
        (JSON, "{", 400),
        (JSON, "[]", 422),
        (JSON, "{\"token\": 7}", 422),
        (JSON, "", 400),
        ("content-type: text/plain\r\n", "{\"token\": \"x\"}", 403),
        ("", "{\"token\": \"x\"}", 403),
        (&*format!("{JSON}{evil}"), "{\"token\": \"x\"}", 403),
        (
            &*format!("{JSON}origin: http://evil.example\r\n"),
            "{\"token\": \"x\"}",
            403,
        ),
        (
            &*format!("{JSON}origin: null\r\n"),
            "{\"token\": \"x\"}",
            403,
        ),
        (
            JSON,
            &*format!("{{\"token\": \"{}\"}}", "x".repeat(70_000)),
            413,
        ),
        (
            JSON,
            &*format!("{{\"token\": \"{}\"}}", "x".repeat(10_000)),
            401,
        ),
    ] {
        let (status, answer) = post(&address, "/api/login", "", more, body);
        let body: String = body.chars().take(40).collect();
        assert_eq!(status, expected, "{more}{body}: {answer}");
    }
    let huge = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let (status, _) = send(&address, huge.as_bytes());
    assert!(matches!(status, 431 | 0), "{status}");
    let (status, _) = send(&address, b"\x16\x03\x01\x02\0\x01\0 not HTTP\r\n\r\n");
    assert!(matches!(status, 400 | 0), "{status}");
    // And whoever makes sense is answered as ever.
    assert_eq!(get(&address, "/api/me", &cookie).0, 200);
}

#[test]
fn who_sends_half_a_request_is_let_go() {
    let (_place, address) = served();
    let halves: [&[u8]; 4] = [
        b"",
        b"GET / HT",
        b"GET /api/me HTTP/1.1\r\nhost: x\r\ncookie: ",
        b"POST /api/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    ];
    let waiting = halves.map(|half| {
        let mut stream = connect(&address);
        stream.write_all(half).expect("sent");
        stream
    });
    for (half, mut stream) in halves.into_iter().zip(waiting) {
        let mut answer = String::new();
        let closed = stream.read_to_string(&mut answer);
        let half = String::from_utf8_lossy(half);
        assert!(closed.is_ok(), "{half:?}: {closed:?}");
        assert!(!answer.contains(" 200 "), "{half:?}: {answer}");
    }
}

#[tokio::test]
async fn event_streams_that_nobody_reads_hold_up_no_verdict_and_are_bounded() {
    let (place, address) = served();
    let cookie = cookie(&place, &address);
    let request = format!(
        "GET /api/events HTTP/1.1\r\nhost: {address}\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n"
    );
    let open = || {
        let mut stream = connect(&address);
        stream.write_all(request.as_bytes()).expect("sent");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("an answer");
        (stream, String::from_utf8_lossy(&status[9..]).into_owned())
    };
    let mut streams = Vec::new();
    let refused = loop {
        let (stream, status) = open();
        if status != "200" {
            break status;
        }
        streams.push(stream);
        assert!(streams.len() <= 64, "nothing bounds them");
    };
    assert_eq!(refused, "429", "after {}", streams.len());
    // None of them is read, half of them are half closed, and a session has much to tell.
    for stream in streams.iter().step_by(2) {
        stream.shutdown(std::net::Shutdown::Write).expect("closed");
    }
    let mut gate = place.gate(TWO).await;
    for exec in 1..=500 {
        gate.ask(exec, "git status").await.expect("an answer");
    }
    gate.stored().await;
    // Others are served, and room is made when one goes.
    assert_eq!(get(&address, "/api/me", &cookie).0, 200);
    drop(streams);
    let began = std::time::Instant::now();
    while open().1 != "200" {
        assert!(began.elapsed() < PATIENCE, "no room is made");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A gate may say 64 KiB in each, and a page draws what comes.
#[tokio::test]
async fn a_page_gets_the_beginning_of_long_texts_and_a_bounded_number_of_bytes_at_once() {
    use execgate::pb::v1;
    use std::io::{BufRead, BufReader};
    use v1::session_request::Event;

    const EXECS: u64 = 60;
    /// About how much is sent together, and one exec more.
    const AT_ONCE: usize = (256 << 10) + (48 << 10);
    let (place, address) = served();
    let cookie = cookie(&place, &address);
    let mut gate = place.gate(TWO).await;
    // As JSON each of these takes six bytes.
    let long = "\u{1}".repeat(20 << 10);
    for exec_id in 1..=EXECS {
        let decided = v1::ExecDecided {
            exec_id,
            action: v1::Action::Deny.into(),
            code: v1::DecisionCode::Verdict.into(),
            reason: long.clone(),
            reason_code: long.clone(),
            rule: long.clone(),
            policy_revision: long.clone(),
            ..v1::ExecDecided::default()
        };
        gate.tell(Event::ExecDecided(decided)).await.expect("told");
    }
    gate.stored().await;

    let mut stream = connect(&address);
    // Of this version an answer isn't cut into chunks.
    let request =
        format!("GET /api/events HTTP/1.0\r\nhost: {address}\r\ncookie: {cookie}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut shown = std::collections::BTreeSet::new();
    let mut lines = BufReader::new(stream).lines();
    while shown.len() < usize::try_from(EXECS).expect("a number") {
        let line = lines.next().expect("it goes on").expect("text");
        if line != "event: execs" {
            continue;
        }
        let data = lines.next().expect("it goes on").expect("text");
        let data = data.strip_prefix("data: ").expect("data");
        assert!(data.len() < AT_ONCE, "{} bytes at once", data.len());
        let execs: Vec<serde_json::Value> = serde_json::from_str(data).expect("JSON");
        for exec in &execs {
            for (name, most) in [
                ("reason", 2_048),
                ("reason_code", 512),
                ("rule", 512),
                ("policy_revision", 512),
            ] {
                let text = exec[name].as_str().expect("a text");
                let beginning = text.strip_suffix('…').expect("it says that there is more");
                assert_eq!(beginning, &long[..most], "{name}");
            }
            shown.insert(exec["exec"].as_u64());
        }
    }
    assert!(shown.contains(&Some(1)) && shown.contains(&Some(EXECS)));
}

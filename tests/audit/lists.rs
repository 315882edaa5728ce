//! List, GetSession, GetHead: what is asked for is found, and nothing else is told to anybody.

use execgate::pb::audit::v1::{
    Exec, ExecFilter, ExecView, GetHeadRequest, GetSessionRequest, ListRequest, Outcome,
    WatchRequest, watch_request,
};
use execgate::pb::v1;
use tonic::Code;

use crate::place::{ONE, Place, TWO, filled};

async fn all(place: &Place, filter: ExecFilter, page_size: u32) -> Vec<Exec> {
    let mut found = Vec::new();
    let mut token = String::new();
    loop {
        let request = ListRequest {
            filter: Some(filter.clone()),
            page_size,
            page_token: token,
            view: ExecView::Full.into(),
        };
        let page = place
            .auditor()
            .await
            .list(place.showing("auditor", request))
            .await;
        let page = page.expect("a page").into_inner();
        assert!(page.execs.len() <= page_size as usize);
        found.extend(page.execs);
        token = page.next_page_token;
        if token.is_empty() {
            return found;
        }
    }
}

#[tokio::test]
async fn pages_have_everything_once_whatever_their_size() {
    let place = filled().await;
    for size in [1, 7, 33, 1_000] {
        let found = all(&place, ExecFilter::default(), size).await;
        assert_eq!(found.len(), 33, "{size}");
        assert!(
            found
                .windows(2)
                .all(|pair| pair[0].position > pair[1].position)
        );
        assert_eq!(found[0].arguments, [&b"curl"[..], b"elsewhere"]);
        assert_eq!(found[0].gate, "token:gate");
    }
}

#[tokio::test]
async fn each_filter_finds_what_fits_and_all_of_them_what_fits_all() {
    let place = filled().await;
    let filter = |change: fn(&mut ExecFilter)| {
        let mut filter = ExecFilter::default();
        change(&mut filter);
        filter
    };
    // From when one in the middle came, which others may have come with.
    let received = |exec: &Exec| {
        let time = exec.receive_time.expect("a time");
        (time.seconds, time.nanos)
    };
    let everything = all(&place, ExecFilter::default(), 100).await;
    let middle = received(&everything[15]);
    let since_middle = ExecFilter {
        since_time: everything[15].receive_time,
        ..ExecFilter::default()
    };
    let later = everything.iter().filter(|exec| received(exec) >= middle);
    let later = later.count();
    assert!((1..33).contains(&later), "{later}");
    for (filter, count) in [
        (since_middle, later),
        (filter(|f| f.session_id_prefix = "2".to_owned()), 2),
        (filter(|f| f.session_id_prefix = ONE.to_owned()), 31),
        (filter(|f| f.session_id_prefix = "3".to_owned()), 0),
        (filter(|f| f.program = "git".to_owned()), 30),
        (filter(|f| f.program = "/usr/bin/make".to_owned()), 1),
        (filter(|f| f.program = "/bin/make".to_owned()), 0),
        (filter(|f| f.outcome = Outcome::Deny.into()), 2),
        (filter(|f| f.outcome = Outcome::Escalate.into()), 1),
        (filter(|f| f.outcome = Outcome::Run.into()), 30),
        (filter(|f| f.outcome = Outcome::Monitored.into()), 0),
        (filter(|f| f.code = "net".to_owned()), 2),
        (filter(|f| f.code = "verdict".to_owned()), 33),
        (filter(|f| f.code = "timed-out".to_owned()), 0),
        (filter(|f| f.gate = "token:gate".to_owned()), 33),
        (filter(|f| f.gate = "token:another".to_owned()), 0),
        (
            filter(|f| f.labels = [("job".to_owned(), "22".to_owned())].into()),
            2,
        ),
        (
            filter(|f| f.labels = [("job".to_owned(), "33".to_owned())].into()),
            0,
        ),
        (
            filter(|f| f.since_time = Some(std::time::SystemTime::now().into())),
            0,
        ),
        (
            filter(|f| f.since_time = Some(prost_types::Timestamp::default())),
            33,
        ),
        (
            filter(|f| {
                f.session_id_prefix = "1".to_owned();
                f.labels = [("job".to_owned(), "11".to_owned())].into();
                f.gate = "token:gate".to_owned();
                f.program = "curl".to_owned();
                f.outcome = Outcome::Deny.into();
                f.code = "net".to_owned();
                f.since_time = Some(prost_types::Timestamp::default());
            }),
            1,
        ),
    ] {
        for size in [1, 100] {
            let found = all(&place, filter.clone(), size).await;
            assert_eq!(found.len(), count, "{filter:?}");
        }
    }
}

#[tokio::test]
async fn a_session_is_told_with_its_tree_and_times() {
    let place = filled().await;
    let mut token = String::new();
    let mut execs = Vec::new();
    loop {
        let request = GetSessionRequest {
            session_id: ONE.to_owned(),
            page_size: 10,
            page_token: token,
            ..GetSessionRequest::default()
        };
        let told = place
            .auditor()
            .await
            .get_session(place.showing("auditor", request))
            .await;
        let told = told.expect("a session").into_inner();
        let session = told.session.expect("a session");
        assert_eq!(
            (&*session.gate, &*session.labels["job"]),
            ("token:gate", "11")
        );
        execs.extend(told.execs);
        token = told.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(execs.len(), 31);
    for exec in &execs[..30] {
        assert_eq!(exec.parent_exec_id, exec.exec_id / 2);
        let ending = exec.ending.as_ref().expect("an end");
        assert_eq!(ending.elapsed.map(|elapsed| elapsed.seconds), Some(1));
        assert!(exec.request_time.is_some() && exec.arguments.is_empty());
    }
}

#[tokio::test]
async fn who_is_no_auditor_gets_nothing_and_an_auditor_no_verdicts() {
    let place = filled().await;
    for (name, code) in [
        ("gate", Code::PermissionDenied),
        ("nobody", Code::Unauthenticated),
    ] {
        let mut auditor = place.auditor().await;
        let refused = [
            auditor
                .list(place.showing(name, ListRequest::default()))
                .await
                .map(drop),
            auditor
                .watch(place.showing(name, WatchRequest::default()))
                .await
                .map(drop),
            auditor
                .get_head(place.showing(name, GetHeadRequest {}))
                .await
                .map(drop),
            auditor
                .get_session(place.showing(name, GetSessionRequest::default()))
                .await
                .map(drop),
        ];
        for refused in refused {
            assert_eq!(refused.expect_err("refused").code(), code);
        }
    }
    let mut policy = v1::policy_service_client::PolicyServiceClient::new(place.channel().await);
    let asked = place.showing(
        "auditor",
        tokio_stream::iter([v1::SessionRequest::default()]),
    );
    let refused = policy.session(asked).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied);
}

fn filter(request: &mut ListRequest) -> &mut ExecFilter {
    request.filter.get_or_insert_default()
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_with_what_is_wrong() {
    let place = filled().await;
    let list = |change: fn(&mut ListRequest)| {
        let mut request = ListRequest {
            filter: Some(ExecFilter::default()),
            ..ListRequest::default()
        };
        change(&mut request);
        request
    };
    for (request, says) in [
        (list(|r| r.page_size = 1_001), "page_size"),
        (list(|r| r.page_size = u32::MAX), "page_size"),
        (list(|r| r.page_token = "x".to_owned()), "page_token"),
        (list(|r| r.page_token = "A".repeat(100_000)), "page_token"),
        (list(|r| r.view = 9), "view"),
        (
            list(|r| filter(r).session_id_prefix = "x' OR 1".to_owned()),
            "session_id_prefix",
        ),
        (
            list(|r| filter(r).session_id_prefix = "1".repeat(33)),
            "session_id_prefix",
        ),
        (list(|r| filter(r).gate = "somebody".to_owned()), "gate"),
        (list(|r| filter(r).program = "x".repeat(5_000)), "program"),
        (list(|r| filter(r).code = "a\0b".to_owned()), "code"),
        (list(|r| filter(r).outcome = 77), "outcome"),
        (
            list(|r| {
                filter(r).since_time = Some(prost_types::Timestamp {
                    seconds: i64::MAX,
                    nanos: 0,
                });
            }),
            "since_time",
        ),
        (
            list(|r| filter(r).labels = (0..17).map(|n| (n.to_string(), String::new())).collect()),
            "labels",
        ),
    ] {
        let mut auditor = place.auditor().await;
        let refused = auditor
            .list(place.showing("auditor", request))
            .await
            .expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().contains(says), "{refused:?}");
    }
    // A token is of its own request.
    let mut auditor = place.auditor().await;
    let first = auditor
        .list(place.showing("auditor", list(|r| r.page_size = 1)))
        .await;
    let token = first.expect("a page").into_inner().next_page_token;
    let mut other = list(|r| filter(r).program = "git".to_owned());
    other.page_token = token;
    let refused = auditor
        .list(place.showing("auditor", other))
        .await
        .expect_err("refused");
    assert!(refused.message().contains("page_token"), "{refused:?}");

    for (id, code) in [
        ("x", Code::InvalidArgument),
        (&"a".repeat(32), Code::NotFound),
    ] {
        let request = GetSessionRequest {
            session_id: id.to_owned(),
            ..GetSessionRequest::default()
        };
        let refused = auditor.get_session(place.showing("auditor", request)).await;
        assert_eq!(refused.expect_err("refused").code(), code);
    }
    for (start, code) in [
        (
            watch_request::Start::AfterPosition(u64::MAX),
            Code::OutOfRange,
        ),
        (
            watch_request::Start::AfterPosition(1_000_000),
            Code::OutOfRange,
        ),
        (
            watch_request::Start::LatestEvents(1_000_000),
            Code::InvalidArgument,
        ),
    ] {
        let request = WatchRequest {
            start: Some(start),
            ..WatchRequest::default()
        };
        let refused = auditor.watch(place.showing("auditor", request)).await;
        assert_eq!(refused.expect_err("refused").code(), code);
    }
}

#[tokio::test]
async fn what_watches_is_filtered_by_the_same_words() {
    let place = filled().await;
    let mut auditor = place.auditor().await;
    for (change, says) in [
        (
            (|f| f.gate = "somebody".to_owned()) as fn(&mut ExecFilter),
            "gate",
        ),
        (|f| f.program = "x".repeat(1 << 17), "program"),
        (|f| f.code = "a\0b".to_owned(), "code"),
        (
            |f| f.session_id_prefix = "%".to_owned(),
            "session_id_prefix",
        ),
        (|f| f.outcome = -1, "outcome"),
        (
            |f| f.labels = (0..17).map(|n| (n.to_string(), String::new())).collect(),
            "labels",
        ),
    ] {
        let mut filter = ExecFilter::default();
        change(&mut filter);
        let request = WatchRequest {
            filter: Some(filter),
            ..WatchRequest::default()
        };
        let refused = auditor.watch(place.showing("auditor", request)).await;
        let refused = refused.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().contains(says), "{refused:?}");
    }
    // And whoever makes sense is answered as ever.
    assert_eq!(all(&place, ExecFilter::default(), 100).await.len(), 33);
    let mut gate = place.gate(TWO).await;
    assert!(gate.ask(9, "make").await.is_some());
}

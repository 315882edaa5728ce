use super::*;

/// One that began long ago.
fn state() -> State {
    let mut state = State::new();
    let long = Duration::from_secs(3600);
    state.began = state.began.checked_sub(long).expect("a clock");
    state
}

/// When something must have begun that has been going on for so long.
fn begun(state: &State, ago: Duration) -> u64 {
    state.now() - u64::try_from(ago.as_millis()).expect("a short time")
}

#[test]
fn a_disk_that_does_not_answer_is_trouble_until_it_does() {
    let state = state();
    let (short, long) = (DISK_PATIENCE / 2, DISK_PATIENCE * 2);
    for work in [&state.writing, &state.synchronizing] {
        assert!(work.begin(begun(&state, short)));
        assert_eq!(state.trouble(), None);
        work.end();
        assert!(work.begin(begun(&state, long)));
        // It is going on since then, whoever comes later.
        assert!(!work.begin(state.now()));
        let trouble = state.trouble().expect("trouble");
        assert!(trouble.contains("doesn't answer"), "{trouble:?}");
        work.end();
        assert_eq!(state.trouble(), None);
    }
}

#[test]
fn a_write_is_waited_for_from_its_beginning_to_its_end() {
    let state = state();
    let trouble = state.writing(|| {
        let begun = state.writing.0.load(Ordering::Acquire);
        assert!(begun > 0 && begun <= state.now(), "{begun}");
        assert_eq!(state.trouble(), None);
        // As if it had begun long ago.
        state.writing.0.store(1, Ordering::Release);
        state.trouble()
    });
    assert!(trouble.is_some());
    assert_eq!(state.trouble(), None);
}

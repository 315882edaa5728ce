//! Which answer wins, however rules are spread over files and whatever the files' order.

use std::fmt::Write;

use proptest::prelude::*;

use super::patterns::ANSWERS;
use super::*;

/// A rule: its answer's place, how many arguments it names, its file, and whether it is acted on.
type Pick = (usize, usize, usize, RuleMode);

const MOST_FILES: usize = 3;

fn pick() -> impl Strategy<Value = Pick> {
    let mode = proptest::sample::select(vec![
        RuleMode::Enforce,
        RuleMode::Enforce,
        RuleMode::Monitor,
    ]);
    (0..ANSWERS.len(), 0..3_usize, 0..MOST_FILES, mode)
}

/// What is done, without the words that name a place.
fn kind(ruling: &Ruling) -> String {
    match (&ruling.decision, &ruling.ask) {
        (EscalationDecision::Deny { .. }, Some(ask)) => format!("ask {:?}", ask.effect),
        (EscalationDecision::Deny { .. }, None) => "deny".to_owned(),
        (other, _) => format!("{other:?}"),
    }
}

/// What is done where a rule with this answer is alone.
fn alone(answer: usize) -> String {
    let lone = rules(&format!("prefix_rule([\"a\"], {})", ANSWERS[answer]));
    kind(&ask(&lone, "/bin/a", &[]))
}

fn files(picks: &[Pick]) -> Vec<(String, String)> {
    let mut files: Vec<_> = (0..MOST_FILES)
        .map(|number| (format!("/{number}.rules"), String::new()))
        .collect();
    for (answer, length, file, mode) in picks {
        let arguments = ", \"x\"".repeat(*length);
        let mode = match mode {
            RuleMode::Enforce => "enforce",
            RuleMode::Monitor => "monitor",
        };
        let answer = ANSWERS[*answer];
        writeln!(
            files[*file].1,
            "prefix_rule([\"a\"{arguments}], {answer}, mode = \"{mode}\")"
        )
        .expect("text");
    }
    files
}

/// The whole order, strictest first, as it is documented.
const ORDER: [&str; 11] = [
    "\"deny\"",
    "\"ask\"",
    "\"ask\", execution = \"turn_default\"",
    "\"ask\", execution = permissions(network = \"denied\")",
    "\"ask\", execution = permissions(network = \"allowed\")",
    "\"ask\", execution = \"unsandboxed\"",
    "\"run\"",
    "\"escalate\", execution = \"turn_default\"",
    "\"escalate\", execution = permissions(network = \"denied\")",
    "\"escalate\", execution = permissions(network = \"allowed\")",
    "\"escalate\", execution = \"unsandboxed\"",
];

#[test]
fn of_any_two_answers_the_stricter_wins_whichever_stands_first() {
    let mut files = [String::new(), String::new()];
    for (one, answer) in ORDER.iter().enumerate() {
        writeln!(files[0], "prefix_rule([\"alone-{one}\"], {answer})").expect("text");
        for (other, second) in ORDER.iter().enumerate() {
            let program = format!("both-{one}-{other}");
            writeln!(files[0], "prefix_rule([\"{program}\"], {answer})").expect("text");
            writeln!(files[1], "prefix_rule([\"{program}\"], {second})").expect("text");
        }
    }
    let [first, second] = files;
    let files = vec![
        ("/1.rules".to_owned(), first),
        ("/2.rules".to_owned(), second),
    ];
    let rules = Rules::parse_all(files).expect("rules");
    let done = |program: String| kind(&ask(&rules, &format!("/bin/{program}"), &[]));
    let alone: Vec<_> = (0..ORDER.len())
        .map(|one| done(format!("alone-{one}")))
        .collect();
    for (one, first) in ORDER.iter().enumerate() {
        for (other, second) in ORDER.iter().enumerate() {
            let both = done(format!("both-{one}-{other}"));
            assert_eq!(both, alone[one.min(other)], "{first} and {second}");
            // None is told as another.
            assert!(one == other || alone[one] != alone[other]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_strictest_answer_of_any_file_wins_whatever_the_order(
        picks in proptest::collection::vec(pick(), 1..8),
        orders in proptest::collection::vec(Just((0..MOST_FILES).collect::<Vec<_>>()).prop_shuffle(), 2),
    ) {
        // What isn't acted on changes nothing of what is done; where nothing is, the command runs.
        let acted_on = picks.iter().filter(|(.., mode)| *mode == RuleMode::Enforce);
        let strictest = acted_on.map(|(answer, ..)| *answer).min();
        let expected = strictest.map_or_else(|| "Run".to_owned(), alone);
        let files = files(&picks);
        for order in orders {
            let ordered = order.iter().map(|at| files[*at].clone()).collect();
            let rules = Rules::parse_all(ordered).expect("rules");
            let ruling = ask(&rules, "/bin/a", &["x", "x"]);
            prop_assert_eq!(kind(&ruling), expected.clone(), "{:?}", order);
            prop_assert_eq!(ruling.matched.len(), picks.len());
            let winner = &ruling.matched[ruling.winner.expect("one")];
            let most = ruling.matched.iter().map(|one| one.answer.strictness()).max();
            prop_assert_eq!(Some(winner.answer.strictness()), most);
        }
    }
}

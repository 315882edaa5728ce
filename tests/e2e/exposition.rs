//! The text format of OpenMetrics, held against its rules: what a strict reader refuses fails here.

use std::collections::{BTreeMap, HashSet};

#[derive(Debug, Default)]
struct Family {
    kind: String,
    has_help: bool,
    /// Values by what follows the family's name, labels included.
    samples: BTreeMap<String, f64>,
}

/// Checks all of it, and tells how many series it has.
#[track_caller]
pub(crate) fn check(text: &str) -> usize {
    let lines = text.strip_suffix("# EOF\n").expect("an end");
    let mut families: Vec<(String, Family)> = Vec::new();
    let mut names = HashSet::new();
    for line in lines.lines() {
        if let Some(about) = line.strip_prefix("# ") {
            let (what, rest) = about.split_once(' ').expect(line);
            let (name, value) = rest.split_once(' ').expect(line);
            if families.last().is_none_or(|(last, _)| last != name) {
                assert!(
                    names.insert(name.to_owned()),
                    "{name} comes twice, or in parts"
                );
                families.push((name.to_owned(), Family::default()));
            }
            let (_, family) = families.last_mut().expect("a family");
            assert!(family.samples.is_empty(), "{line} comes behind its samples");
            match what {
                "HELP" => {
                    assert!(value.ends_with('.') && value.len() > 10, "{line}");
                    family.has_help = true;
                }
                "TYPE" => value.clone_into(&mut family.kind),
                other => panic!("{other} in {line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect(line);
        let (name, family) = families.last_mut().expect(line);
        let suffix = series
            .strip_prefix(name.as_str())
            .unwrap_or_else(|| panic!("{line} is none of {name}"));
        let value: f64 = value.parse().expect(line);
        assert!(value.is_finite(), "{line}");
        let before = family.samples.insert(suffix.to_owned(), value);
        assert_eq!(before, None, "{line} comes twice");
    }
    for (name, family) in &families {
        well_formed(name, family);
    }
    families
        .iter()
        .map(|(_, family)| family.samples.len())
        .sum()
}

#[track_caller]
fn well_formed(name: &str, family: &Family) {
    let may_be_named = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    assert!(
        name.starts_with("execgate_") && name.bytes().all(may_be_named),
        "{name}"
    );
    assert!(family.has_help, "{name} has no help");
    let without_labels = |suffix: &String| suffix.split('{').next() == Some("");
    match family.kind.as_str() {
        "counter" => {
            let is_total = |suffix: &String| suffix.split('{').next() == Some("_total");
            assert!(family.samples.keys().all(is_total), "{name}: {family:?}");
            assert!(family.samples.values().all(|count| *count >= 0.0), "{name}");
        }
        "gauge" => assert!(
            family.samples.keys().all(without_labels),
            "{name}: {family:?}"
        ),
        "histogram" => histogram(name, family),
        other => panic!("{name} is a {other}"),
    }
}

#[track_caller]
fn histogram(name: &str, family: &Family) {
    let sample = |suffix: &str| {
        let value = family.samples.get(suffix);
        *value.unwrap_or_else(|| panic!("no {suffix} of {name}"))
    };
    let mut buckets: Vec<(f64, f64)> = family
        .samples
        .iter()
        .filter_map(|(suffix, count)| {
            let bound = suffix.strip_prefix("_bucket{le=\"")?.strip_suffix("\"}")?;
            Some((bound.parse().expect(suffix), *count))
        })
        .collect();
    assert_eq!(
        family.samples.len(),
        buckets.len() + 2,
        "{name}: {family:?}"
    );
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (bound, all) = *buckets.last().expect(name);
    assert_eq!(
        (bound, all),
        (f64::INFINITY, sample("_count")),
        "the last bucket of {name} isn't its count"
    );
    assert!(
        buckets.is_sorted_by(|one, other| one.1 <= other.1),
        "the buckets of {name} shrink: {buckets:?}"
    );
    // What is counted is at most as long as its bucket's bound.
    let mut before = 0.0;
    let mut most = 0.0;
    for (bound, count) in buckets {
        most += (count - before) * bound.min(1e9);
        before = count;
    }
    let sum = sample("_sum");
    assert!(
        (0.0..=most).contains(&sum),
        "the sum of {name} can't be {sum}"
    );
}

#[test]
#[should_panic(expected = "comes twice")]
fn a_series_that_comes_twice_is_found() {
    check(
        "# HELP execgate_x A number of things.\n# TYPE execgate_x gauge\nexecgate_x 1\nexecgate_x 2\n# EOF\n",
    );
}

/// A histogram with these numbers.
fn check_histogram(sum: u8, count: u8, within_one: u8, all: u8) {
    check(&format!(
        "# HELP execgate_x A number of things.\n# TYPE execgate_x histogram\nexecgate_x_sum {sum}\n\
         execgate_x_count {count}\nexecgate_x_bucket{{le=\"1.0\"}} {within_one}\n\
         execgate_x_bucket{{le=\"+Inf\"}} {all}\n# EOF\n"
    ));
}

#[test]
fn a_histogram_that_is_right_passes() {
    check_histogram(2, 2, 2, 2);
    check_histogram(200, 3, 2, 3);
}

#[test]
#[should_panic(expected = "the buckets of execgate_x shrink")]
fn a_histogram_whose_buckets_shrink_is_found() {
    check_histogram(1, 2, 3, 2);
}

#[test]
#[should_panic(expected = "the last bucket of execgate_x isn't its count")]
fn a_histogram_that_counts_two_ways_is_found() {
    check_histogram(1, 3, 1, 2);
}

#[test]
#[should_panic(expected = "the sum of execgate_x can't be 3")]
fn a_histogram_whose_sum_is_more_than_its_buckets_allow_is_found() {
    check_histogram(3, 2, 2, 2);
}

#[test]
#[should_panic(expected = "execgate_x has no help")]
fn a_family_without_help_is_found() {
    check("# TYPE execgate_x gauge\nexecgate_x 1\n# EOF\n");
}

#[test]
#[should_panic(expected = "comes twice, or in parts")]
fn a_family_in_parts_is_found() {
    let family =
        |name| format!("# HELP {name} A number of things.\n# TYPE {name} gauge\n{name} 1\n");
    let parts = ["execgate_x", "execgate_y", "execgate_x"].map(family);
    check(&format!("{}# EOF\n", parts.concat()));
}

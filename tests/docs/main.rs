//! The pages of `docs/` and the README, as a reader would follow them: each command is run, in order, on a machine of
//! the page's own (`machine.sh`), and writes what the page shows. Rules load, and programs run. A block that isn't run
//! says why where it stands (```` ```sh not-run: REASON ````), and is on the list here.
//!
//! The machine takes root: as another user, the pages are read but not run, and standard error says so.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "what fails here fails the test"
)]

mod machine;
mod page;

use std::path::{Path, PathBuf};

use machine::Machine;
use page::{Block, Content};

/// Pages, with how many blocks of each aren't run.
const PAGES: [(&str, usize); 6] = [
    ("README.md", 5),
    ("docs/operators.md", 1),
    ("docs/rules.md", 0),
    ("docs/auditors.md", 0),
    ("docs/approvals.md", 0),
    ("docs/escalated-environment.md", 0),
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn blocks(page: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(repository().join(page)).expect("a page");
    Block::of(&text)
}

fn follow(page: &str) {
    let blocks = blocks(page);
    let Some(mut machine) = Machine::for_page(page) else {
        return;
    };
    for block in &blocks {
        machine.follow(block);
    }
}

#[test]
fn readme() {
    follow("README.md");
}

#[test]
fn operators() {
    follow("docs/operators.md");
}

#[test]
fn rule_authors() {
    follow("docs/rules.md");
}

#[test]
fn auditors() {
    follow("docs/auditors.md");
}

#[test]
fn approvals() {
    follow("docs/approvals.md");
}

#[test]
fn what_is_not_run_is_on_the_list() {
    for (page, count) in PAGES {
        let blocks = blocks(page);
        let not_run: Vec<_> = blocks
            .iter()
            .filter_map(|block| match &block.content {
                Content::NotRun(reason) => Some(format!("{page}:{}: {reason}", block.line)),
                _ => None,
            })
            .collect();
        for block in &not_run {
            eprintln!("not run: {block}");
        }
        assert_eq!(
            not_run.len(),
            count,
            "{page} has {} blocks, of which these aren't run: {not_run:#?}",
            blocks.len()
        );
    }
}

#[test]
fn every_page_is_on_the_list() {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(repository().join("docs"))
        .expect("pages")
        .map(|entry| Path::new("docs").join(entry.expect("a page").file_name()))
        .collect();
    pages.sort();
    let mut listed: Vec<PathBuf> = PAGES.iter().map(|(page, _)| page.into()).collect();
    listed.retain(|page| page.starts_with("docs"));
    listed.sort();
    assert_eq!(pages, listed);
}

/// The file that operators set the service up by has all of its options, by the variables that set them.
#[test]
fn the_annotated_configuration_has_every_option() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).expect("a file");
    let (help, file) = (
        read("tests/snapshots/help.txt"),
        read("examples/systemd/execgate-policyd.conf"),
    );
    let of_help = |line: &str| {
        let variable = line.split("[env: ").nth(1)?.split('=').next()?;
        (variable.starts_with("EXECGATE_POLICYD_")).then(|| variable.to_owned())
    };
    let options: std::collections::BTreeSet<_> = help.lines().filter_map(of_help).collect();
    assert!(options.len() > 15, "{options:?}");
    for option in &options {
        let has = |line: &str| {
            line.trim_start_matches('#')
                .starts_with(&format!("{option}="))
        };
        assert!(file.lines().any(has), "{option} isn't in it");
    }
    for line in file.lines() {
        let Some((name, _)) = line.trim_start_matches('#').split_once('=') else {
            continue;
        };
        let is_option = name.starts_with("EXECGATE_") && !name.contains(' ');
        assert!(!is_option || options.contains(name), "there is no {name}");
    }
}

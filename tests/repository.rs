//! The repository's own rules, as tests. Where one fails it says what to do; that each of them can
//! fail is shown on a small sample beside it.
//!
//! Only the standard library: `rustc --edition 2024 --test tests/repository.rs`, run in the
//! repository's directory, will do as well.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "clippy takes what tests call for something else than tests"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A room of the house, and what it may use. ARCHITECTURE.md has the same table.
struct Room {
    name: &'static str,
    rooms: &'static [&'static str],
    crates: Crates,
}

/// Which packages a room may name. Of the standard library each may use all.
#[derive(Debug, PartialEq, Eq)]
enum Crates {
    /// These.
    Only(&'static [&'static str]),
    /// Any in Cargo.toml.
    Any,
}

const ROOMS: [Room; 16] = [
    Room {
        name: "model",
        rooms: &[],
        crates: Crates::Only(&[]),
    },
    Room {
        name: "sys",
        rooms: &[],
        crates: Crates::Only(&["libc", "rustix", "tokio"]),
    },
    Room {
        name: "program",
        rooms: &["model", "sys"],
        crates: Crates::Only(&["sha2"]),
    },
    Room {
        name: "wire",
        rooms: &["model"],
        crates: Crates::Only(&["base64", "serde", "serde_json"]),
    },
    Room {
        name: "wrapper",
        rooms: &["wire", "sys"],
        crates: Crates::Only(&["rustix"]),
    },
    Room {
        name: "stand_in",
        rooms: &["wire", "sys", "wrapper"],
        crates: Crates::Only(&["libc", "rustix", "serde"]),
    },
    Room {
        name: "server",
        rooms: &["model", "wire", "sys", "program"],
        crates: Crates::Only(&["serde", "thiserror", "tokio", "tokio-util", "tracing"]),
    },
    Room {
        name: "sandbox",
        rooms: &["model", "sys"],
        crates: Crates::Only(&[
            "landlock",
            "libc",
            "seccompiler",
            "serde",
            "thiserror",
            "toml",
        ]),
    },
    Room {
        name: "pb",
        rooms: &["model"],
        crates: Crates::Only(&["prost", "prost-types", "thiserror", "tonic"]),
    },
    Room {
        name: "transport",
        rooms: &[],
        crates: Crates::Only(&["thiserror", "tokio", "tokio-rustls"]),
    },
    Room {
        name: "journal",
        rooms: &["model", "sys"],
        crates: Crates::Only(&[
            "crc32fast",
            "prost",
            "rusqlite",
            "thiserror",
            "tokio",
            "tracing",
        ]),
    },
    Room {
        name: "link",
        rooms: &["model", "sys", "pb", "server", "transport", "journal"],
        crates: Crates::Any,
    },
    Room {
        name: "metrics",
        rooms: &["model", "server", "link", "journal"],
        crates: Crates::Any,
    },
    Room {
        name: "logging",
        rooms: &[],
        crates: Crates::Only(&["clap", "humantime", "serde_json", "tracing-subscriber"]),
    },
    Room {
        name: "policyd",
        rooms: &[
            "model",
            "sys",
            "program",
            "pb",
            "logging",
            "metrics",
            "transport",
        ],
        crates: Crates::Any,
    },
    Room {
        name: "cli",
        rooms: &[
            "model", "sys", "wire", "server", "sandbox", "pb", "journal", "link", "metrics",
            "logging", "policyd",
        ],
        crates: Crates::Any,
    },
];

/// Packages that a room may name in one file only.
const IN_ONE_FILE: [(&str, &str, &str); 1] = [("sys", "tokio", "src/sys/readiness.rs")];

/// Rooms whose `main` is a program.
const PROGRAMS: [&str; 4] = ["cli", "policyd", "stand_in", "wrapper"];

/// What must not be in the program that starts in front of every command.
const TOO_HEAVY: [&str; 9] = [
    "clap",
    "futures-util",
    "hyper",
    "mio",
    "prost",
    "thiserror",
    "tokio",
    "tonic",
    "tracing",
];

/// Most packages below the wrapper, those that run at compile time included.
const MOST_WRAPPER_PACKAGES: usize = 15;

/// Names that say nothing of what is inside.
const EMPTY_NAMES: [&str; 8] = [
    "common", "helper", "helpers", "manager", "misc", "shared", "util", "utils",
];

/// Addresses in tests that are there to be refused.
const REFUSED_ADDRESSES: [(&str, [u8; 4]); 2] = [
    ("src/policyd/listen.rs", [0; 4]),
    ("tests/policyd.rs", [0; 4]),
];

/// A file of the repository.
struct File {
    path: String,
    text: String,
}

impl File {
    fn room(&self) -> Option<&str> {
        let (room, _) = self.path.strip_prefix("src/")?.split_once('/')?;
        (room != "bin").then_some(room)
    }

    fn is_rust(&self) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|extension| extension == "rs")
    }
}

fn root() -> PathBuf {
    match option_env!("CARGO_MANIFEST_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => std::env::current_dir().expect("a directory"),
    }
}

/// All files that are or could be committed; bytes that aren't UTF-8 are replaced.
fn files() -> Vec<File> {
    let listed = git(&[
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let mut paths: Vec<String> = match listed {
        Some(listed) => listed.split_terminator('\0').map(str::to_owned).collect(),
        None => walk(&root())
            .into_iter()
            .filter_map(|path| Some(path.strip_prefix(root()).ok()?.to_str()?.to_owned()))
            .collect(),
    };
    paths.sort_unstable();
    paths.dedup();
    let read = |path: String| {
        let bytes = std::fs::read(root().join(&path)).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Some(File { path, text })
    };
    // What is deleted and not committed yet is listed as well.
    paths.into_iter().filter_map(read).collect()
}

/// What git says; `None` where this is no checkout, but an unpacked archive of one.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

/// All files below a directory, but for what is built there.
fn walk(directory: &Path) -> Vec<PathBuf> {
    let built = [".git", "__pycache__", "target"];
    let mut found = Vec::new();
    let entries = std::fs::read_dir(directory).expect("a directory that can be read");
    for entry in entries.map_while(Result::ok) {
        let is_built = built.iter().any(|name| entry.file_name() == *name);
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !is_built => found.extend(walk(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

fn file(path: &str) -> File {
    let text = std::fs::read_to_string(root().join(path));
    File {
        path: path.to_owned(),
        text: text.unwrap_or_else(|error| panic!("{path}: {error}: it belongs to the repository")),
    }
}

fn sample(path: &str, text: &str) -> Vec<File> {
    vec![File {
        path: path.to_owned(),
        text: text.to_owned(),
    }]
}

#[track_caller]
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n  {}\n", faults.join("\n  "));
}

#[track_caller]
fn assert_fault(faults: &[String], part: &str) {
    assert!(
        faults.iter().any(|fault| fault.contains(part)),
        "no fault has {part:?}: {faults:?}"
    );
}

// What a Rust file says, without what it says to people.

/// The text with comments, strings and characters blanked out. Lines stay where they are.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = skipped(rest, code.chars().next_back());
        if length == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            let (blanked, behind) = rest.split_at(length);
            code.extend(blanked.chars().map(|c| if c == '\n' { c } else { ' ' }));
            rest = behind;
        }
    }
    code
}

/// Length of the comment or literal that `rest` begins with; 0 where it is code.
fn skipped(rest: &str, before: Option<char>) -> usize {
    let upto = |end: &str, from: usize| {
        let found = rest[from..].find(end);
        found.map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return upto("*/", 2);
    }
    if !before.is_some_and(is_word) {
        let raw = rest
            .strip_prefix(['b', 'c'])
            .unwrap_or(rest)
            .strip_prefix('r');
        if let Some(raw) = raw {
            let hashes = raw.len() - raw.trim_start_matches('#').len();
            if raw[hashes..].starts_with('"') {
                let opening = rest.len() - raw.len() + hashes + 1;
                return upto(&format!("\"{}", "#".repeat(hashes)), opening);
            }
        }
    }
    if rest.starts_with('"') {
        return literal(rest, '"');
    }
    if let Some(behind) = rest.strip_prefix('\'') {
        let mut characters = behind.chars();
        let first = characters.next();
        // Else it is a lifetime or a label.
        if first == Some('\\') || characters.next() == Some('\'') {
            return literal(rest, '\'');
        }
    }
    0
}

/// Length of the literal that `rest` begins with, up to an unescaped `end`.
fn literal(rest: &str, end: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == end => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The places of a word, as a whole: where it ends.
fn word_ends<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).filter_map(move |(at, _)| {
        let end = at + word.len();
        let before = code[..at].chars().next_back();
        let behind = code[end..].chars().next();
        (!before.is_some_and(is_word) && !behind.is_some_and(is_word)).then_some(end)
    })
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The first parts of all paths that begin with `root`, such as `crate`, each with its line.
fn paths_from<'a>(code: &'a str, root: &'a str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for end in word_ends(code, root) {
        let Some(rest) = code[end..].strip_prefix("::") else {
            continue;
        };
        let line = line_of(code, end);
        let rest = rest.trim_start();
        if let Some(group) = rest.strip_prefix('{') {
            let names = group_names(group);
            found.extend(names.into_iter().map(|name| (line, name)));
        } else {
            found.push((line, first_name(rest)));
        }
    }
    found
}

/// The first parts of the paths in a group, which ends with the text or a brace.
fn group_names(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0;
    let mut part = String::new();
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(first_name(std::mem::take(&mut part).trim())),
            _ if depth == 0 => part.push(character),
            _ => {}
        }
    }
    names.push(first_name(part.trim()));
    names.retain(|name| !name.is_empty());
    names
}

fn first_name(path: &str) -> String {
    if path.starts_with('*') {
        return "*".to_owned();
    }
    path.chars().take_while(|c| is_word(*c)).collect()
}

// Rooms.

const CHANGE_THE_TABLE: &str = "move the code to a room that may, or change the table in \
    ARCHITECTURE.md and in tests/repository.rs, in one commit that says why";

fn room(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

/// Uses of rooms that the table doesn't have.
fn forbidden_edges(files: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(own) = file.room() else { continue };
        let Some(table) = room(own) else {
            faults.push(format!(
                "{}: the room `{own}` isn't in the table: give it a row, with what it may use, in \
                 ARCHITECTURE.md and in tests/repository.rs",
                file.path
            ));
            continue;
        };
        let code = code_of(&file.text);
        let mut used = paths_from(&code, "crate");
        // The other way out of a room; a module of the room may have a room's name.
        used.extend(paths_from(&code, "super").into_iter().filter(|(_, name)| {
            let inside = |place: &str| {
                let path = format!("src/{own}/{name}{place}");
                files.iter().any(|file| file.path == path)
            };
            room(name).is_some() && !inside(".rs") && !inside("/mod.rs")
        }));
        for (line, name) in used {
            let place = format!("{}:{line}", file.path);
            if name == own || name == "raw_main" || table.rooms.contains(&&*name) {
                continue;
            }
            faults.push(match room(&name) {
                Some(_) => {
                    format!("{place}: `{own}` may not use `{name}`: {CHANGE_THE_TABLE}")
                }
                None => format!(
                    "{place}: `crate::{name}` is no room: name what is used by its room's path"
                ),
            });
        }
    }
    faults
}

/// Uses of packages that the table doesn't have. `packages` are all that there are.
fn forbidden_packages(files: &[File], packages: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(table) = file.room().and_then(room) else {
            continue;
        };
        let code = code_of(&file.text);
        for package in packages {
            let word = package.replace('-', "_");
            let Some(end) = word_ends(&code, &word).find(|end| {
                code[*end..].starts_with("::") && !code[..end - word.len()].ends_with("::")
            }) else {
                continue;
            };
            let place = format!("{}:{}", file.path, line_of(&code, end));
            let own = table.name;
            let only = IN_ONE_FILE
                .iter()
                .find(|(room, name, _)| *room == own && name == package);
            let listed = match &table.crates {
                Crates::Any => true,
                Crates::Only(packages) => packages.contains(&&**package),
            };
            if !listed {
                faults.push(format!(
                    "{place}: `{own}` may not use the package {package}: {CHANGE_THE_TABLE}"
                ));
            } else if let Some((_, _, file_of_it)) = only
                && *file_of_it != file.path
            {
                faults.push(format!(
                    "{place}: in `{own}` only {file_of_it} may use {package}: move it there, or to \
                     another room"
                ));
            }
        }
    }
    faults
}

/// Names under `[dependencies]`.
fn packages_of(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[").find_map(|section| {
        let (name, lines) = section.split_once('\n')?;
        (name == "dependencies]").then_some(lines)
    });
    let names = section.unwrap_or_default().lines().filter_map(|line| {
        let (name, _) = line.split_once('=')?;
        Some(name.trim().to_owned())
    });
    names
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .collect()
}

/// Where the table of a text differs from the one here.
fn table_differences(document: &File) -> Vec<String> {
    let rows: Vec<Vec<&str>> = document
        .text
        .lines()
        .skip_while(|line| !line.starts_with("| room "))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for row in &rows {
        let [name, _, rooms, crates] = row[..] else {
            faults.push(format!("{row:?} hasn't four cells"));
            continue;
        };
        let name = quoted(name).pop().unwrap_or_default();
        let Some(table) = room(&name) else {
            faults.push(format!("`{name}` isn't in tests/repository.rs"));
            continue;
        };
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let rooms: BTreeSet<String> = quoted(rooms).into_iter().collect();
        let expected: BTreeSet<String> = set(table.rooms);
        if rooms != expected {
            faults.push(format!(
                "`{name}` may use the rooms {rooms:?} there, and {expected:?} in tests/repository.rs"
            ));
        }
        let same = match &table.crates {
            Crates::Any => crates == "any",
            Crates::Only(packages) => {
                let expected: BTreeSet<String> = set(packages);
                crates != "any" && quoted(crates).into_iter().collect::<BTreeSet<_>>() == expected
            }
        };
        if !same {
            faults.push(format!(
                "`{name}` may use the packages {crates:?} there, and {:?} in tests/repository.rs",
                table.crates
            ));
        }
        seen.insert(name);
    }
    for room in ROOMS {
        if !seen.contains(room.name) {
            faults.push(format!("`{}` has no row there", room.name));
        }
    }
    let path = &document.path;
    faults
        .iter()
        .map(|fault| format!("{path}, table of rooms: {fault}: make the two tables agree"))
        .collect()
}

/// What stands in backquotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Rooms of the table that aren't there.
fn missing_rooms(files: &[File]) -> Vec<String> {
    let there = |room: &Room| files.iter().any(|file| file.room() == Some(room.name));
    ROOMS
        .iter()
        .filter(|room| !there(room))
        .map(|room| {
            let name = room.name;
            format!("src/{name} isn't there: take the row out of both tables, or add the room")
        })
        .collect()
}

/// Programs that are more than a call of their room's `main`.
fn long_programs(files: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files
        .iter()
        .filter(|file| file.path.starts_with("src/bin/"))
    {
        let code: String = code_of(&file.text).split_whitespace().collect();
        let code = code.replace("#![no_main]", "");
        let code = code.replace("#![cfg_attr(not(feature=),no_std)]", "");
        let called = code
            .strip_prefix("execgate::raw_main!(execgate::")
            .and_then(|rest| rest.strip_suffix(");"))
            .or_else(|| {
                let body = code.strip_prefix("fnmain()")?.split_once('{')?.1;
                body.strip_prefix("execgate::")?.strip_suffix("()}")
            })
            .filter(|path| path.chars().all(|c| is_word(c) || c == ':'))
            .and_then(|path| path.strip_suffix("::main"))
            .and_then(|path| path.split("::").next());
        if !called.is_some_and(|room| PROGRAMS.contains(&room)) {
            faults.push(format!(
                "{}: a program is one call, of the `main` of {}: move the rest there",
                file.path,
                PROGRAMS.join(", ")
            ));
        }
    }
    faults
}

#[test]
fn rooms_use_only_what_their_table_says() {
    assert_none(&forbidden_edges(&files()));
}

#[test]
fn rooms_use_only_the_packages_that_their_table_says() {
    let packages = packages_of(&file("Cargo.toml").text);
    assert!(packages.len() > 3, "no dependencies found: {packages:?}");
    assert_none(&forbidden_packages(&files(), &packages));
}

#[test]
fn the_table_of_rooms_is_the_one_in_the_architecture() {
    assert_none(&table_differences(&file("ARCHITECTURE.md")));
}

#[test]
fn every_room_of_the_table_is_there() {
    assert_none(&missing_rooms(&files()));
}

#[test]
fn a_program_is_one_call() {
    assert_none(&long_programs(&files()));
}

#[test]
fn a_forbidden_edge_is_found() {
    let edges = |path: &str, text: &str| forbidden_edges(&sample(path, text));
    let policyd = "src/policyd/service.rs";
    for text in [
        "use crate::server::Stopwatch;",
        "use crate::{model::ExecId, server::Stopwatch};",
        "use crate::{\n    pb::{v1, text},\n    wire,\n};",
        "fn f() { crate::sandbox::Sandbox::None }",
        "mod tests { use super::super::super::server; }",
    ] {
        assert_fault(&edges(policyd, text), "`policyd` may not use `");
    }
    assert_fault(&edges(policyd, "use crate::*;"), "is no room");
    assert_fault(&edges("src/cli/x.rs", "use crate::wrapper;"), "`wrapper`");
    assert_fault(&edges("src/attic/mod.rs", ""), "give it a row");
    let harmless = "//! See [`x`](crate::server).\nconst A: &str = \"crate::server\"; /* crate::sys */ \
        use crate::{model::{self, ExecId}, pb::v1}; use crate::policyd::text; use super::rules;";
    assert_none(&edges(policyd, harmless));
    let mut own_module = sample("src/cli/exec.rs", "use super::wrapper;");
    own_module.extend(sample("src/cli/wrapper.rs", ""));
    assert_none(&forbidden_edges(&own_module));
}

#[test]
fn a_forbidden_package_is_found() {
    let packages = packages_of(
        "[features]\na = []\n\n[dependencies]\nserde = \"1\"\n# more\ntokio = { version = \"1\" }\n\n[lints]\nb = 1\n",
    );
    assert_eq!(packages, ["serde", "tokio"]);
    let faults = |path, text| forbidden_packages(&sample(path, text), &packages);
    assert_fault(
        &faults("src/wrapper/ask.rs", "\nuse tokio::net;"),
        "ask.rs:2: `wrapper` may not use the package tokio",
    );
    assert_fault(
        &faults("src/sys/socket.rs", "use tokio::io::Interest;"),
        "only src/sys/readiness.rs may use tokio",
    );
    assert_none(&faults("src/sys/readiness.rs", "use tokio::io::Interest;"));
    assert_none(&faults(
        "src/wrapper/ask.rs",
        "use crate::tokio::x; // tokio::y",
    ));
}

#[test]
fn a_table_that_differs_is_found() {
    let head = "| room | what | rooms | packages |\n|---|---|---|---|\n";
    let faults = |row: &str| {
        let document = File {
            path: "A.md".to_owned(),
            text: format!("text\n\n{head}{row}\n\nmore"),
        };
        table_differences(&document)
    };
    assert_fault(
        &faults("| `wire` | x | `sys` | `serde` |"),
        "`wire` may use the rooms",
    );
    assert_fault(
        &faults("| `wire` | x | `model` | any |"),
        "`wire` may use the packages",
    );
    assert_fault(&faults("| `attic` | x | none | none |"), "`attic` isn't in");
    assert_fault(&faults("| `model` | x | none |"), "four cells");
    assert_fault(&faults("| `model` | x | none | none |"), "`sys` has no row");
    assert!(
        !faults("| `model` | x | none | none |")
            .iter()
            .any(|f| f.contains("`model`"))
    );
    assert_fault(&missing_rooms(&[]), "src/model isn't there");
}

#[test]
fn a_program_that_does_more_is_found() {
    let faults = |text| long_programs(&sample("src/bin/x.rs", text));
    for text in [
        "fn main() {}",
        "fn main() { prepare(); execgate::cli::main() }",
        "fn main() { execgate::server::main() }",
        "const A: u8 = 1; execgate::raw_main!(execgate::cli::main);",
    ] {
        assert_fault(&faults(text), "one call");
    }
    assert_none(&faults(
        "//! X.\n#![no_main]\n\nexecgate::raw_main!(execgate::cli::main);",
    ));
    assert_none(&faults(
        "fn main() -> std::process::ExitCode { execgate::policyd::command::main() }",
    ));
}

// Unsafe code.

/// `unsafe` anywhere but in `sys`, and the macro that expands to it anywhere but in a program.
fn unsafe_elsewhere(files: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        if file.room() == Some("sys") {
            continue;
        }
        let code = code_of(&file.text);
        let place = |end| format!("{}:{}", file.path, line_of(&code, end));
        for end in word_ends(&code, "unsafe") {
            faults.push(format!(
                "{}: unsafe code is under src/sys alone: put a safe function there, and call it",
                place(end)
            ));
        }
        for end in word_ends(&code, "unsafe_code") {
            let before = &code[..end - "unsafe_code".len()];
            if before.ends_with("allow(") || before.ends_with("expect(") {
                faults.push(format!(
                    "{}: the lint is allowed under src/sys alone: take this out",
                    place(end)
                ));
            }
        }
        for end in word_ends(&code, "raw_main") {
            if code[end..].starts_with('!') && !file.path.starts_with("src/bin/") {
                faults.push(format!(
                    "{}: raw_main! expands to unsafe code, and is for programs in src/bin alone",
                    place(end)
                ));
            }
        }
    }
    faults
}

#[test]
fn unsafe_code_is_in_sys() {
    assert_none(&unsafe_elsewhere(&files()));
}

#[test]
fn unsafe_code_elsewhere_is_found() {
    let faults = |path, text| unsafe_elsewhere(&sample(path, text));
    let block = "fn f() { unsafe { g() } }";
    assert_fault(&faults("src/server/x.rs", block), "src/server/x.rs:1");
    assert_fault(&faults("tests/x.rs", block), "src/sys alone");
    assert_fault(
        &faults("build.rs", "\n#![allow(unsafe_code)]"),
        "build.rs:2",
    );
    let program = "execgate::raw_main!(execgate::cli::main);";
    assert_fault(&faults("src/cli/x.rs", program), "src/bin alone");
    assert_none(&faults("src/bin/x.rs", program));
    assert_none(&faults("src/sys/x.rs", block));
    let harmless =
        "#![forbid(unsafe_code)] // unsafe\nconst A: [&str; 2] = [\"unsafe\", r#\"unsafe\"#];";
    assert_none(&faults("src/server/x.rs", harmless));
}

// The wrapper's packages.

/// Packages below the wrapper that don't belong there. `tree` has a package on each line.
fn heavy_packages(tree: &str) -> Vec<String> {
    let packages: BTreeSet<_> = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "execgate")
        .collect();
    let mut faults: Vec<_> = packages
        .iter()
        .filter(|name| TOO_HEAVY.contains(name))
        .map(|name| {
            format!(
                "the wrapper depends on {name}: make the package optional, in the feature `full`, and \
                 find who uses it by `cargo tree --no-default-features -e normal -i {name}`"
            )
        })
        .collect();
    if packages.len() > MOST_WRAPPER_PACKAGES {
        faults.push(format!(
            "the wrapper depends on {} packages, and {MOST_WRAPPER_PACKAGES} are the most: do without \
             one, or say in the commit that raises the number why it is worth it: {packages:?}",
            packages.len()
        ));
    }
    faults
}

#[test]
fn the_wrapper_is_light() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--no-default-features", "-e", "normal"])
        .args(["--offline", "--locked", "--prefix", "none"])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    let tree = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "cargo tree: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(tree.contains("serde_json "), "no packages found: {tree}");
    assert_none(&heavy_packages(&tree));
}

#[test]
fn a_heavy_wrapper_is_found() {
    let tree = "execgate v0.1.0 (x)\nlibc v0.2.1\ntokio v1.0.0\ntokio v1.0.0 (*)\n";
    assert_fault(&heavy_packages(tree), "depends on tokio");
    let many: Vec<_> = (0..=MOST_WRAPPER_PACKAGES)
        .map(|number| format!("p{number} v1.0.0"))
        .collect();
    assert_fault(&heavy_packages(&many.join("\n")), "are the most");
    assert_none(&heavy_packages(&many[1..].join("\n")));
}

// What is of one machine.

/// Each in two halves, so that this file doesn't hold what it looks for.
const OF_A_MACHINE: [(&str, &str); 4] = [
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("/ro", "ot/."),
    (".cargo/", "registry"),
];
const OF_A_REGISTRY: [(&str, &str); 9] = [
    ("index.crates", ".io"),
    ("static.crates", ".io"),
    ("crates.io", "-index"),
    ("pypi", ".org"),
    ("files.python", "hosted.org"),
    ("registry.npm", "js.org"),
    ("proxy.golang", ".org"),
    ("ruby", "gems.org"),
    ("repo.maven", ".apache.org"),
];
const OUTSIDE: (&str, &str) = ("sha", "red/");

/// Mentions of what isn't in the repository. `checkouts` are directories that it lies in here.
fn foreign_places(files: &[File], checkouts: &[String]) -> Vec<String> {
    let join = |(left, right): (&str, &str)| [left, right].concat();
    let mut wanted: Vec<(String, &str)> = Vec::new();
    wanted.extend(
        OF_A_MACHINE.map(|halves| (join(halves), "a path of one machine: make it relative")),
    );
    for checkout in checkouts {
        wanted.push((
            checkout.clone(),
            "the path of this checkout: make it relative",
        ));
    }
    wanted.extend(OF_A_REGISTRY.map(|halves| {
        let what =
            "a package registry's address: where packages come from is for each to configure";
        (join(halves), what)
    }));
    wanted.push((
        join(OUTSIDE),
        "a directory outside of the repository: say here what it says there",
    ));
    let mut faults = Vec::new();
    for file in files {
        // Cargo writes it, and names where packages came from.
        if file.path.ends_with("Cargo.lock") {
            continue;
        }
        for (text, what) in &wanted {
            for (at, _) in file.text.match_indices(&**text) {
                let before = file.text[..at].chars().next_back();
                let goes_on = before.is_some_and(|c| is_word(c) || c == '-' || c == '.');
                if goes_on && !text.starts_with('.') {
                    continue;
                }
                let line = line_of(&file.text, at);
                faults.push(format!("{}:{line}: {text:?} is {what}", file.path));
            }
        }
    }
    faults
}

/// Where this checkout is, and that whose worktree it may be; not the likes of `/src`.
fn checkouts() -> Vec<String> {
    let common = git(&["rev-parse", "--path-format=absolute", "--git-common-dir"]);
    let main = common.and_then(|path| Some(Path::new(path.trim()).parent()?.to_owned()));
    let paths = [Some(root()), main].into_iter().flatten();
    let long = paths.filter(|path| path.components().count() > 2);
    let names: BTreeSet<_> = long.map(|path| path.display().to_string()).collect();
    names.into_iter().collect()
}

#[test]
fn no_file_names_a_place_outside_of_the_repository() {
    assert_none(&foreign_places(&files(), &checkouts()));
}

#[test]
fn a_place_outside_of_the_repository_is_found() {
    let faults = |text: &str| foreign_places(&sample("a.md", text), &["/src/x".to_owned()]);
    let join = |(left, right): (&str, &str)| [left, right].concat();
    for halves in OF_A_MACHINE {
        assert_fault(&faults(&format!("x\n{}me", join(halves))), "a.md:2");
    }
    for halves in OF_A_REGISTRY {
        assert_fault(&faults(&format!("https://{}/x", join(halves))), "registry");
    }
    assert_fault(&faults(&format!("see {}x.md", join(OUTSIDE))), "outside");
    assert_fault(&faults("cd /src/x/y"), "this checkout");
    assert_none(&faults(
        "--disable-shared /usr/share/doc ./home/x and crates.io",
    ));
}

// What modules say of themselves.

/// `mod.rs` files that don't say what they are for, and what isn't in them.
fn undocumented_modules(files: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        if !file.path.starts_with("src/") || !file.path.ends_with("/mod.rs") {
            continue;
        }
        let lines: Vec<_> = file
            .text
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .map(str::trim)
            .collect();
        if lines.first().is_none_or(|purpose| purpose.len() <= 10) {
            faults.push(format!(
                "{}: say in its first line, by //!, what it is for",
                file.path
            ));
        } else if !lines.iter().any(|line| line.starts_with("Not here:")) {
            faults.push(format!(
                "{}: say, in a paragraph `//! Not here:`, what one could look for here in vain",
                file.path
            ));
        }
    }
    faults
}

#[test]
fn every_module_says_what_it_is_for_and_what_is_not_in_it() {
    assert_none(&undocumented_modules(&files()));
}

#[test]
fn a_module_that_does_not_say_so_is_found() {
    let faults = |text| undocumented_modules(&sample("src/x/mod.rs", text));
    assert_fault(&faults("mod a;\n"), "first line");
    assert_fault(&faults("//!\n//! Not here: a.\n"), "first line");
    assert_fault(
        &faults("//! Turns a into b.\n\n//! Not here: a.\n"),
        "Not here:",
    );
    assert_none(&faults(
        "//! Turns a into b.\n//!\n//! Not here: c.\n\nmod a;\n",
    ));
}

// What is left over.

/// Unfinished code, and tests that don't run.
fn leftovers(files: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let code = code_of(&file.text);
        let place = |at| format!("{}:{}", file.path, line_of(&code, at));
        for (name, advice) in [
            (
                "todo",
                "write what is missing, or return an error that says so",
            ),
            (
                "unimplemented",
                "write what is missing, or return an error that says so",
            ),
            ("dbg", "take it out, or log by tracing"),
        ] {
            for end in word_ends(&code, name) {
                if code[end..].starts_with('!') && !code[end..].starts_with("!=") {
                    faults.push(format!("{}: {name}!: {advice}", place(end)));
                }
            }
        }
        for (at, _) in code.match_indices("#[ignore") {
            faults.push(format!(
                "{}: a test that doesn't run: have it say on standard error what it needs, and pass \
                 where that is missing, or take it out",
                place(at)
            ));
        }
    }
    faults
}

#[test]
fn nothing_is_left_over() {
    assert_none(&leftovers(&files()));
}

#[test]
fn what_is_left_over_is_found() {
    let faults = |text| leftovers(&sample("src/x.rs", text));
    assert_fault(&faults("fn f() {\n    todo!()\n}"), "x.rs:2: todo!");
    assert_fault(&faults("unimplemented!(\"x\")"), "unimplemented!");
    assert_fault(&faults("let a = dbg!(b);"), "dbg!");
    assert_fault(
        &faults("#[test]\n#[ignore = \"slow\"]\nfn f() {}"),
        "x.rs:2",
    );
    assert_none(&faults(
        "// todo!()\nlet dbg = \"dbg!(#[ignore])\"; if todo != 1 {}",
    ));
}

// Networks.

/// IPv4 addresses, each with the line that it is in.
fn addresses(text: &str) -> Vec<(usize, [u8; 4])> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let tokens = line.split(|c: char| !is_word(c) && c != '.');
        for token in tokens {
            let parts: Vec<_> = token.trim_matches('.').split('.').collect();
            let numbers: Vec<u8> = parts.iter().filter_map(|part| part.parse().ok()).collect();
            if let (4, Ok(address)) = (parts.len(), <[u8; 4]>::try_from(numbers)) {
                found.push((index + 1, address));
            }
        }
    }
    found
}

/// Addresses in tests that other machines may have.
fn far_addresses(files: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let is_test = file.path.starts_with("tests/") || file.path.starts_with("benches/");
        let from = if is_test {
            0
        } else if file.path.starts_with("src/") {
            file.text.find("#[cfg(test)]").unwrap_or(file.text.len())
        } else {
            file.text.len()
        };
        let lines_before = file.text[..from].matches('\n').count();
        for (line, address) in addresses(&file.text[from..]) {
            let refused = REFUSED_ADDRESSES.contains(&(&*file.path, address));
            if address[0] != 127 && !refused {
                let address = std::net::Ipv4Addr::from(address);
                faults.push(format!(
                    "{}:{}: {address}: tests stay on this machine: use 127.0.0.1 and port 0, or a \
                     socket in a temporary directory",
                    file.path,
                    lines_before + line
                ));
            }
        }
    }
    faults
}

#[test]
fn tests_stay_on_this_machine() {
    assert_none(&far_addresses(&files()));
}

#[test]
fn an_address_of_another_machine_is_found() {
    let far = ["10", "1", "2", "3"].join(".");
    let faults = |path, text: &str| far_addresses(&sample(path, text));
    assert_fault(&faults("tests/x.sh", &format!("\nnc {far} 80")), "x.sh:2");
    let unit = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{ const A: &str = \"{far}:1\"; }}");
    assert_fault(&faults("src/x/y.rs", &unit), "y.rs:3");
    assert_none(&faults(
        "src/x/y.rs",
        &format!("/// Such as {far}.\nfn f() {{}}"),
    ));
    assert_none(&faults(
        "tests/x.rs",
        "127.0.0.1:0, version 1.2.3, 0.1, x1.2.3.4",
    ));
    let everywhere = ["0"; 4].join(".");
    assert_fault(&faults("tests/x.rs", &everywhere), "tests stay");
    assert_none(&faults("tests/policyd.rs", &everywhere));
}

// Names.

/// Modules whose names say nothing.
fn empty_names(files: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let mut names: Vec<String> = file.path.split(['/', '.']).map(str::to_owned).collect();
        let code = code_of(&file.text);
        for end in word_ends(&code, "mod") {
            names.push(first_name(code[end..].trim_start()));
        }
        for name in names {
            if EMPTY_NAMES.contains(&&*name) {
                faults.push(format!(
                    "{}: the name `{name}` says nothing: name the module after what it does",
                    file.path
                ));
            }
        }
    }
    faults
}

#[test]
fn modules_are_named_after_what_they_do() {
    assert_none(&empty_names(&files()));
}

#[test]
fn a_name_that_says_nothing_is_found() {
    assert_fault(&empty_names(&sample("src/x/utils.rs", "")), "`utils`");
    assert_fault(&empty_names(&sample("tests/common/mod.rs", "")), "`common`");
    assert_fault(
        &empty_names(&sample("src/x.rs", "mod helpers {}")),
        "`helpers`",
    );
    assert_none(&empty_names(&sample(
        "src/x.rs",
        "mod a; // mod utils;\nlet common = 1;",
    )));
}

// Versions.

/// Documents that name another version than the manifest.
fn other_versions(manifest: &str, documents: &[File]) -> Vec<String> {
    let version = manifest.lines().find_map(|line| {
        let value = line.strip_prefix("version = \"")?;
        value.strip_suffix('"')
    });
    let Some(version) = version else {
        return vec!["Cargo.toml: no line `version = \"...\"` of the package".to_owned()];
    };
    let mut faults = Vec::new();
    for document in documents {
        let path = &document.path;
        if path == "CHANGELOG.md" {
            let top = document.text.lines().find(|line| line.starts_with("## "));
            let named = top.and_then(|line| line.split_whitespace().nth(1));
            if named != Some(version) {
                faults.push(format!(
                    "{path}: its first entry is {top:?}, and Cargo.toml has {version}: begin an entry \
                     `## {version}`, or set the version there"
                ));
            }
        }
        if path == "Cargo.lock" {
            let entry = format!("name = \"execgate\"\nversion = \"{version}\"\n");
            if !document.text.contains(&entry) {
                faults.push(format!(
                    "{path}: it has no execgate {version}: run `cargo check`, and commit it"
                ));
            }
        }
        if path == "README.md" {
            for (at, _) in document.text.match_indices("execgate ") {
                let rest = &document.text[at + "execgate ".len()..];
                let named = rest.strip_prefix('v').unwrap_or(rest);
                let named: String = named
                    .chars()
                    .take_while(|c| c.is_ascii_digit() || *c == '.')
                    .collect();
                let named = named.trim_end_matches('.');
                if named.contains('.') && named != version {
                    let line = line_of(&document.text, at);
                    faults.push(format!(
                        "{path}:{line}: execgate {named}: Cargo.toml has {version}"
                    ));
                }
            }
        }
    }
    faults
}

#[test]
fn all_name_the_same_version() {
    let all = files();
    assert!(
        all.iter().any(|file| file.path == "CHANGELOG.md"),
        "CHANGELOG.md is missing: it tells operators what an upgrade changes"
    );
    assert_none(&other_versions(&file("Cargo.toml").text, &all));
}

#[test]
fn another_version_is_found() {
    let manifest = "[package]\nname = \"execgate\"\nversion = \"1.2.0\"\n";
    let faults = |path, text| other_versions(manifest, &sample(path, text));
    assert_fault(
        &faults("CHANGELOG.md", "# Changes\n\n## 1.1.0\n\n## 1.2.0\n"),
        "## 1.1.0",
    );
    assert_fault(&faults("CHANGELOG.md", "# Changes\n"), "first entry");
    assert_none(&faults(
        "CHANGELOG.md",
        "# Changes\n\n## 1.2.0 (unreleased)\n",
    ));
    assert_fault(&faults("README.md", "x\nexecgate v1.1.0."), "README.md:2");
    assert_none(&faults(
        "README.md",
        "execgate 1.2.0. execgate exec; execgate 2 things",
    ));
    assert_fault(
        &faults("Cargo.lock", "name = \"execgate\"\nversion = \"1.1.0\"\n"),
        "cargo check",
    );
    assert_fault(&other_versions("", &[]), "no line");
}

#[test]
fn what_is_said_to_people_is_no_code() {
    let text = "a /* b */ 'x' '\\'' \"c\\\"d\" r#\"e\"f\"# b\"g\" br\"h\" &'i j 'k: loop // l\nm";
    let code = code_of(text);
    assert_eq!(code.len(), text.len());
    let words: Vec<_> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "b", "&'i", "j", "'k:", "loop", "m"], "{code}");
}

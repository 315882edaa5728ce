//! Places that are known for secrets: what the page on security says of them, by what a session can read.

#![allow(
    clippy::needless_pass_by_value,
    reason = "a stage is its test's, which may change it"
)]

use std::path::Path;
use std::process::Command;

use crate::machine::{available, repository};
use crate::process;
use crate::stage::{Stage, User, as_nobody, everywhere};

everywhere! {
    what_the_page_on_security_lists_is_hidden_and_what_it_excepts_is_not,
}

/// Puts a file at each of the places, or into it where it is a directory, says which, and becomes the command. In mounts
/// of its own: the machine's directories stay as they are. What is tested may have been built below one of them.
const LAY_OUT: &str = r#"
set -e
umask 022
mkdir -p "$UPPER"
mount -t tmpfs none "$UPPER"
mkdir "$UPPER/checkout"
mount --bind "$CHECKOUT" "$UPPER/checkout"
for directory in /etc /var/lib; do
    mkdir -p "$UPPER$directory/files" "$UPPER$directory/work"
    mount -t overlay none -o "lowerdir=$directory,upperdir=$UPPER$directory/files,workdir=$UPPER$directory/work" "$directory"
done
for directory in /run /tmp /dev/shm; do
    mount -t tmpfs none "$directory"
    chmod 1777 "$directory"
done
if test ! -d "$CHECKOUT"; then
    mkdir -p "$CHECKOUT"
    mount --bind "$UPPER/checkout" "$CHECKOUT"
fi
while IFS= read -r place; do
    test "$place" = /dev && place=/dev/shm
    test -d "$place" && place=$place/inside
    mkdir -p "${place%/*}"
    rm -f "$place"
    echo there >"$place"
    chmod a+rx "${place%/*}" "$place"
    echo "$place"
done <places >files
exec "$@"
"#;

/// Names those files that it can read.
const READ: &str = r#"while IFS= read -r file; do
    IFS= read -r line <"$file" && echo "$file"
done <files 2>/dev/null
true"#;

/// What is between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn what_the_page_on_security_lists_is_hidden_and_what_it_excepts_is_not(stage: Stage) {
    let mut own_mounts = Command::new("unshare");
    own_mounts.args(["--mount", "mount", "-t", "tmpfs", "none", "/run"]);
    let is_possible = own_mounts.status().is_ok_and(|status| status.success());
    if !available(is_possible, "only root can lay out such a machine") {
        return;
    }
    let page = repository().join("SECURITY.md");
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, list) = page
        .split_once("\nHidden, whether or not it exists;")
        .expect("a list");
    let (hidden, rest) = list
        .split_once("\n\nOf `/run` these can be read: ")
        .expect("its end");
    let (_, hidden) = hidden.split_once("|---|---|\n").expect("a table");
    let (excepted, _) = rest.split_once(". ").expect("a sentence");
    let excepted: Vec<_> = quoted(excepted).collect();
    let home = stage.path("home").display().to_string();
    let places: Vec<_> = quoted(hidden)
        .chain(excepted.iter().copied())
        .map(|place| match place.strip_prefix('~') {
            Some(rest) => format!("{home}{rest}\n"),
            None => format!("{place}\n"),
        })
        .collect();
    assert!(places.len() > 80, "{places:?}");
    stage.write("work/places", &places.concat());

    let read_by = |command: &Command| {
        let mut within = Command::new("unshare");
        within
            .args(["--mount", "--", "/bin/sh", "-c", LAY_OUT, "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear()
            .env("UPPER", stage.path("upper"))
            .env("CHECKOUT", repository())
            .current_dir(stage.path("work"));
        for (name, value) in stage.command("").get_envs() {
            within.env(name, value.expect("a value"));
        }
        process::run(&mut within).exits(0).output()
    };
    // Without a sandbox each can be read: the rest means something.
    let mut outside = match stage.user {
        User::Own => Command::new("/bin/bash"),
        User::Nobody => as_nobody("/bin/bash"),
    };
    let all = read_by(outside.args(["-c", READ]));
    assert_eq!(all.lines().count(), places.len(), "{all}");
    let is_excepted = |file: &&str| {
        excepted
            .iter()
            .any(|place| Path::new(file).starts_with(place))
    };
    let expected: Vec<_> = all.lines().filter(is_excepted).collect();
    assert_eq!(expected.len(), excepted.len());
    let found = read_by(&stage.command(READ));
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
}

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::model::Unprotected;
use crate::sys::place::Rights;

/// Of a user who owns nothing here and is in no group.
fn stranger() -> Writer {
    let rights = Rights {
        user: 54_321,
        groups: vec![54_321],
        overrides_permissions: false,
    };
    Writer::new(&rights, WritablePlaces::Everywhere)
}

fn root(places: WritablePlaces) -> Writer {
    let rights = Rights {
        user: 0,
        groups: vec![0],
        overrides_permissions: true,
    };
    Writer::new(&rights, places)
}

fn examined(path: &Path, writer: &Writer, wanted: Digest) -> Examined {
    let examination = Examination {
        writer,
        digests: &Digests::default(),
        wanted,
        until: Instant::now() + Duration::from_secs(60),
    };
    examination.examine(path, Path::new("/"))
}

fn found(path: &Path, writer: &Writer) -> Arc<ExecutableFile> {
    match examined(path, writer, Digest::None).executable {
        Executable::Found(found) => found,
        other => panic!("{}: {other:?}", path.display()),
    }
}

/// A directory that the stranger can't write, however the tests' own is.
struct House(tempfile::TempDir);

impl House {
    fn new() -> Self {
        let house = Self(tempfile::tempdir_in("/var/tmp").unwrap());
        house.allow("", 0o755);
        house
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        self.allow(name, 0o755);
        path
    }

    fn allow(&self, name: &str, mode: u32) {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.path(name), mode).unwrap();
    }
}

fn is_writable(path: &Path, because: &Path) {
    assert_eq!(
        *found(path, &stranger()).protection(),
        Protection::Writable(because.to_owned()),
        "{}",
        path.display()
    );
}

fn is_protected(path: &Path) {
    let file = found(path, &stranger());
    assert_eq!(*file.protection(), Protection::Protected, "{file:?}");
}

#[test]
fn a_program_of_the_system_is_protected_through_all_its_links() {
    for path in [
        "/bin/sh",
        "/usr/bin/env",
        "/usr/bin/../bin/true",
        "//usr/./bin/cat",
    ] {
        is_protected(Path::new(path));
    }
    let sh = found(Path::new("/bin/sh"), &stranger());
    assert_eq!(sh.path, Path::new("/bin/sh").canonicalize().unwrap());
    assert_eq!((sh.owner, &sh.content), (0, &ExecutableContent::Binary));
}

#[test]
fn whatever_lets_it_be_written_or_replaced_counts() {
    let house = House::new();
    let file = house.file("a/program", "\0");
    is_protected(&file);
    house.allow("a/program", 0o757);
    is_writable(&file, &file);
    house.allow("a/program", 0o755);
    house.allow("a", 0o757);
    is_writable(&file, &house.path("a"));
    // In a sticky directory what isn't one's own stays.
    house.allow("a", 0o1777);
    is_protected(&file);
    house.allow("a", 0o755);
    house.allow("", 0o757);
    is_writable(&file, &house.path("").join(""));
}

#[test]
fn a_link_is_only_as_good_as_the_directory_that_it_is_in() {
    let house = House::new();
    let file = house.file("good/program", "\0");
    std::fs::create_dir(house.path("bad")).unwrap();
    symlink(&file, house.path("bad/link")).unwrap();
    symlink("../good", house.path("bad/directory")).unwrap();
    symlink("bad/link", house.path("twice")).unwrap();
    let names = ["bad/link", "bad/directory/program", "twice"].map(|name| house.path(name));
    for name in &names {
        is_protected(name);
    }
    house.allow("bad", 0o757);
    for name in &names {
        is_writable(name, &house.path("bad"));
    }
    is_protected(&file);
}

#[test]
fn owner_group_and_access_list_count() {
    let house = House::new();
    let file = house.file("program", "\0");
    let own = std::fs::metadata(&file).unwrap();
    let member = |user, group| {
        let rights = Rights {
            user,
            groups: vec![group],
            overrides_permissions: false,
        };
        let writer = Writer::new(&rights, WritablePlaces::Everywhere);
        found(&file, &writer).own_protection.clone()
    };
    let writable = Protection::Writable(file.clone());
    assert_eq!(member(54_321, 54_321), Protection::Protected);
    assert_ne!(member(own.uid(), 54_321), Protection::Protected);
    assert_eq!(member(54_321, own.gid()), Protection::Protected);
    house.allow("program", 0o775);
    assert_eq!(member(54_321, own.gid()), writable);
    assert_eq!(member(54_321, 54_321), Protection::Protected);
    let listed = std::process::Command::new("setfacl")
        .args(["-m", "u:54321:rwx"])
        .arg(&file)
        .output();
    if listed.is_ok_and(|listed| listed.status.success()) {
        assert_eq!(member(54_321, 54_321), writable);
    }
}

#[test]
fn root_is_kept_from_files_by_its_sandbox_alone() {
    let house = House::new();
    let (inside, outside) = (
        house.file("in/program", "\0"),
        house.file("out/program", "\0"),
    );
    let everywhere = root(WritablePlaces::Everywhere);
    assert_eq!(
        *found(&inside, &everywhere).protection(),
        Protection::NoBoundary
    );
    let confined = root(WritablePlaces::Only(vec![house.path("in")]));
    assert_eq!(
        *found(&outside, &confined).protection(),
        Protection::Protected
    );
    assert!(matches!(
        found(&inside, &confined).protection(),
        Protection::Writable(_)
    ));
    // One beside it is as good; another may be where it can be written.
    std::fs::hard_link(&outside, house.path("out/beside")).unwrap();
    assert_eq!(
        *found(&outside, &confined).protection(),
        Protection::Protected
    );
    std::fs::hard_link(&outside, house.path("in/other")).unwrap();
    assert!(matches!(
        found(&outside, &confined).protection(),
        Protection::Writable(_)
    ));
}

#[test]
fn a_script_is_as_good_as_its_interpreter() {
    let house = House::new();
    let interpreter = house.file("interpreter", "\0");
    let line = format!("#!{} -x y\n", interpreter.display());
    let script = house.file("script", &line);
    let file = found(&script, &stranger());
    let Some(Interpreter {
        argument,
        executable: Executable::Found(of),
        ..
    }) = file.interpreter()
    else {
        panic!("{file:?}");
    };
    assert_eq!(argument.as_deref(), Some("-x y".as_ref()));
    assert_eq!(of.path, interpreter);
    is_protected(&script);
    house.allow("interpreter", 0o777);
    is_writable(&script, &interpreter);
    // Not there: nothing to execute, and nothing to call protected.
    std::fs::remove_file(&interpreter).unwrap();
    assert!(found(&script, &stranger()).chain().is_err());
}

#[test]
fn what_is_no_file_is_not_opened() {
    let house = House::new();
    let pipe = house.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    symlink("loop", house.path("loop")).unwrap();
    let deep = PathBuf::from("/".repeat(5000));
    for path in [
        &pipe,
        &house.path(""),
        &house.path("loop"),
        &house.path("missing"),
        &house.path("pipe/x"),
        &deep,
        Path::new("/proc/self/exe"),
        Path::new("/dev/null"),
    ] {
        let examined = examined(path, &stranger(), Digest::Sha256);
        assert!(
            !matches!(examined.executable, Executable::Found(_)),
            "{examined:?}"
        );
    }
}

fn verified(
    path: &Path,
    judged: &Examined,
    writer: &Writer,
    unprotected: Unprotected,
) -> Result<Execution, Refusal> {
    let names = (path, Path::new("/"));
    verify(
        names,
        &judged.executable,
        &judged.places,
        writer,
        unprotected,
    )
}

#[test]
fn what_changed_since_it_was_judged_is_not_executed() {
    type Change = fn(&House);
    let changes: [(&str, Change); 5] = [
        ("edited", |house| {
            house.file("a/script", "#!/bin/sh\nbad\n");
        }),
        ("replaced", |house| {
            let other = house.file("b", "#!/bin/sh\nbad\n");
            std::fs::rename(other, house.path("a/script")).unwrap();
        }),
        ("another directory", |house| {
            house.file("b/script", "#!/bin/sh\nbad\n");
            std::fs::rename(house.path("a"), house.path("c")).unwrap();
            std::fs::rename(house.path("b"), house.path("a")).unwrap();
        }),
        ("a link", |house| {
            let other = house.file("b", "#!/bin/sh\nbad\n");
            std::fs::remove_file(house.path("a/script")).unwrap();
            symlink(other, house.path("a/script")).unwrap();
        }),
        ("gone", |house| {
            std::fs::remove_file(house.path("a/script")).unwrap();
        }),
    ];
    for (what, change) in changes {
        for writer in [stranger(), root(WritablePlaces::Everywhere)] {
            let house = House::new();
            let script = house.file("a/script", "#!/bin/sh\ngood\n");
            let judged = examined(&script, &writer, Digest::None);
            let same = verified(&script, &judged, &writer, Unprotected::Denied);
            assert!(matches!(same, Ok(Execution::ByName)), "{same:?}");
            change(&house);
            let refused = verified(&script, &judged, &writer, Unprotected::Allowed);
            assert!(
                matches!(refused, Err(Refusal::Changed(_))),
                "{what}: {refused:?}"
            );
        }
    }
}

#[test]
fn what_the_session_can_write_is_executed_from_a_copy_if_at_all() {
    let house = House::new();
    let script = house.file("script", "#!/bin/sh -e\ngood\n");
    house.allow("script", 0o777);
    for wanted in [Digest::None, Digest::Sha256] {
        let judged = examined(&script, &stranger(), wanted);
        let refused = verified(&script, &judged, &stranger(), Unprotected::Denied);
        assert_eq!(refused.err(), Some(Refusal::Unprotected(script.clone())));
        let by = verified(&script, &judged, &stranger(), Unprotected::Allowed);
        let Ok(Execution::ByDescriptor(by)) = by else {
            panic!("{by:?}");
        };
        assert_eq!(by.count(), 1);
        let argv = ["given", "a", "b"].map(Into::into).to_vec();
        let (program, argv, copies) = by.command(argv, [40]);
        assert_eq!(program, Path::new("/bin/sh"));
        assert_eq!(argv, ["/bin/sh", "-e", "/proc/self/fd/40", "a", "b"]);
        assert_eq!(copies.len(), 1);
        assert_eq!(copies[0].1, 40);
    }
}

#[test]
fn a_digest_tells_what_is_written_without_a_trace_and_lets_names_change() {
    let house = House::new();
    let script = house.file("script", "#!/bin/sh\ngood\n");
    house.allow("script", 0o777);
    let judged = examined(&script, &stranger(), Digest::Sha256);
    // Its name leads elsewhere; the file that was judged is the same.
    std::fs::rename(&script, house.path("moved")).unwrap();
    house.file("script", "#!/bin/sh\nbad\n");
    let by = verified(&script, &judged, &stranger(), Unprotected::Allowed);
    assert!(matches!(by, Ok(Execution::ByDescriptor(_))), "{by:?}");
    std::fs::write(house.path("moved"), "#!/bin/sh\nevil\n").unwrap();
    let refused = verified(&script, &judged, &stranger(), Unprotected::Allowed);
    assert!(matches!(refused, Err(Refusal::Changed(_))), "{refused:?}");
}

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
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
    if !list(&file) {
        return;
    }
    assert_eq!(member(54_321, 54_321), writable);
    // It gives no more than the mode lets it.
    house.allow("program", 0o755);
    assert_eq!(member(54_321, 54_321), Protection::Protected);
}

/// Has user 54321 write a file by an access control list, `acl(5)`, as `setfacl -m u:54321:rwx` would. Tells
/// whether the filesystem has such lists.
fn list(file: &Path) -> bool {
    // Owner, user, group, mask and others, as `linux/posix_acl_xattr.h` has them.
    let script = "import os, struct, sys\n\
        entries = [(1, 7, -1), (2, 7, 54321), (4, 5, -1), (16, 7, -1), (32, 5, -1)]\n\
        packed = [struct.pack('<HHi', *entry) for entry in entries]\n\
        value = struct.pack('<I', 2) + b''.join(packed)\n\
        os.setxattr(sys.argv[1], 'system.posix_acl_access', value)";
    let listed = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(file)
        .output()
        .unwrap();
    if !listed.status.success() {
        assert!(std::env::var_os("CI").is_none(), "{listed:?}");
        eprintln!(
            "SKIPPED: access control lists, which the filesystem of /var/tmp lacks: {listed:?}"
        );
    }
    listed.status.success()
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
    // Goes on, and so to its end, as soon as somebody opens the pipe's other end.
    let mut waits = std::process::Command::new("sh")
        .args(["-c", ": > \"$0\""])
        .arg(&pipe)
        .spawn()
        .unwrap();
    assert!(!is_at_its_end(&waits));
    let no_file = Some("it isn't a regular file");
    let rows = [
        (pipe.clone(), no_file),
        (house.path(""), no_file),
        ("/dev/null".into(), no_file),
        (house.path("loop"), Some("too many links")),
        ("/proc/self/exe".into(), Some("a link of /proc")),
        (house.path("missing"), None),
        (house.path("pipe/x"), None),
    ];
    for (path, unknown) in rows {
        let examined = examined(&path, &stranger(), Digest::Sha256);
        let is_expected = match (&examined.executable, unknown) {
            (Executable::Unknown(reason), Some(expected)) => reason.contains(expected),
            (Executable::NotThere, None) => true,
            _ => false,
        };
        assert!(is_expected, "{}: {examined:?}", path.display());
        assert!(examined.places.is_empty());
    }
    let opened = is_at_its_end(&waits);
    waits.kill().unwrap();
    waits.wait().unwrap();
    assert!(!opened, "somebody has opened the pipe");
}

/// Waits until a process sleeps, or has ended: tells which.
fn is_at_its_end(process: &std::process::Child) -> bool {
    let began = Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        match stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next())
        {
            Some('S') => return false,
            Some('Z') => return true,
            _ => assert!(began.elapsed() < Duration::from_secs(60), "{stat}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_found(path: &Path) -> bool {
    let examined = examined(path, &stranger(), Digest::None);
    matches!(examined.executable, Executable::Found(_))
}

#[test]
fn a_name_is_followed_as_far_as_the_kernel_does_and_no_further() {
    let house = House::new();
    house.file("d/program", "\0");
    let kernel_finds = |path: &Path| std::fs::metadata(path).is_ok();

    // `PATH_MAX` counts the byte behind it, too.
    let (begin, end) = (house.path("d").into_os_string(), "program");
    let (turn, longest) = ("/../d", 4095);
    let room = longest - begin.len() - end.len();
    let turns = turn.repeat(room / turn.len() - 1);
    let name = |slashes: usize| {
        let slashes = "/".repeat(slashes);
        PathBuf::from(format!("{}{turns}{slashes}{end}", begin.display()))
    };
    let slashes = room - turns.len();
    assert_eq!(name(slashes).as_os_str().len(), longest);
    assert!(kernel_finds(&name(slashes)) && is_found(&name(slashes)));
    assert!(!kernel_finds(&name(slashes + 1)) && !is_found(&name(slashes + 1)));

    // `MAXSYMLINKS`.
    symlink("d/program", house.path("link1")).unwrap();
    for number in 2..=41 {
        let target = format!("link{}", number - 1);
        symlink(target, house.path(&format!("link{number}"))).unwrap();
    }
    let [most, more] = ["link40", "link41"].map(|name| house.path(name));
    assert!(kernel_finds(&most) && is_found(&most));
    assert!(!kernel_finds(&more) && !is_found(&more));

    // Few links may be a long way.
    symlink("d/program", house.path("way0")).unwrap();
    for number in 1..=5 {
        let target = format!(".{}way{}", "/".repeat(900), number - 1);
        symlink(target, house.path(&format!("way{number}"))).unwrap();
    }
    assert!(is_found(&house.path("way4")));
    assert!(!is_found(&house.path("way5")));
}

#[test]
fn interpreters_of_interpreters_are_looked_at_as_long_as_the_kernel_executes_them() {
    let house = House::new();
    house.file("1", "\0");
    for number in 2..=7 {
        let line = format!("#!{}\n", house.path(&(number - 1).to_string()).display());
        house.file(&number.to_string(), &line);
    }
    let [most, more] = ["6", "7"].map(|name| house.path(name));
    let judged = examined(&most, &stranger(), Digest::None);
    assert_eq!(judged.places.len(), 6);
    let by = verified(&most, &judged, &stranger(), Unprotected::Denied);
    assert!(matches!(by, Ok(Execution::ByName)), "{by:?}");
    let judged = examined(&more, &stranger(), Digest::None);
    let refused = verified(&more, &judged, &stranger(), Unprotected::Denied);
    let Err(Refusal::Unidentified(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("too many interpreters"), "{why}");
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
fn the_very_file_by_another_way_or_open_to_others_is_not_executed() {
    let house = House::new();
    let script = house.file("a/script", "#!/bin/sh\ngood\n");
    let writer = stranger();
    let judged = examined(&script, &writer, Digest::None);
    let refused = || match verified(&script, &judged, &writer, Unprotected::Allowed) {
        Err(Refusal::Changed(why)) => why,
        other => panic!("{other:?}"),
    };
    // Neither leaves a trace on the file.
    std::fs::rename(house.path("a"), house.path("b")).unwrap();
    symlink("b", house.path("a")).unwrap();
    assert!(refused().contains("another file"), "{}", refused());
    std::fs::remove_file(house.path("a")).unwrap();
    std::fs::rename(house.path("b"), house.path("a")).unwrap();
    let same = verified(&script, &judged, &writer, Unprotected::Denied);
    assert!(matches!(same, Ok(Execution::ByName)), "{same:?}");
    house.allow("a", 0o757);
    let expected = "somebody else may write it now";
    assert!(refused().contains(expected), "{}", refused());
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
fn what_is_too_large_for_a_copy_is_not_executed() {
    let house = House::new();
    let script = house.file("script", "#!/bin/sh\n");
    house.allow("script", 0o777);
    let file = std::fs::File::options().write(true).open(&script).unwrap();
    file.set_len(LARGEST_COPY + 1).unwrap();
    let judged = examined(&script, &stranger(), Digest::None);
    let refused = verified(&script, &judged, &stranger(), Unprotected::Allowed);
    assert_eq!(refused.err(), Some(Refusal::too_large()));
}

#[test]
fn what_is_written_while_it_is_copied_is_not_executed() {
    const LENGTH: u64 = 8 << 20;
    const NAME: &str = "written-while-it-is-copied";
    let house = House::new();
    let script = house.file(NAME, "#!/bin/sh\ngood\n");
    house.allow(NAME, 0o777);
    let file = std::fs::File::options().write(true).open(&script).unwrap();
    file.set_len(LENGTH).unwrap();
    let is_tested = |_| {
        let judged = examined(&script, &stranger(), Digest::None);
        // The clock that files have their times by goes on every few milliseconds.
        let written = |path| std::fs::metadata(path).unwrap().modified().unwrap();
        while written(house.file("now", "")) == written(script.clone()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::scope(|scope| {
            let verifying =
                scope.spawn(|| verified(&script, &judged, &stranger(), Unprotected::Allowed));
            while length_in_memory(NAME) == 0 && !verifying.is_finished() {
                std::thread::yield_now();
            }
            file.write_all_at(b"evil", LENGTH - 4).unwrap();
            let copied = length_in_memory(NAME);
            let verified = verifying.join().unwrap();
            let is_in_time = (1..LENGTH / 2).contains(&copied);
            let is_changed = matches!(verified, Err(Refusal::Changed(_)));
            assert!(is_changed || !is_in_time, "{verified:?}");
            is_in_time
        })
    };
    assert!((0..100).any(is_tested), "it is always copied too soon");
}

/// How many bytes a file in memory has that this process made under this name.
fn length_in_memory(name: &str) -> u64 {
    let name = format!("/memfd:{name}");
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let target = std::fs::read_link(path).unwrap_or_default();
            target.to_string_lossy().starts_with(&name)
        })
        .and_then(|path| Some(std::fs::metadata(path).ok()?.len()))
        .unwrap_or(0)
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

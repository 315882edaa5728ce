//! What commands can and can't do in each sandbox, as root and as an ordinary user.

#![allow(
    clippy::needless_pass_by_value,
    reason = "a stage is its test's, which may change it"
)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::repository;
use crate::process::{self, EXECGATE, Running, wait_until};
use crate::stage::{RUN, Stage, User, as_nobody, everywhere};

everywhere! {
    secrets_are_hidden_and_the_rest_can_be_read,
    only_the_working_directory_and_its_own_temporary_one_can_be_written,
    a_log_outside_is_written_and_opened_anew_as_the_page_on_security_says,
    what_a_killed_gate_left_goes_with_the_next_session,
    there_is_no_network_and_no_named_socket,
    the_gate_is_out_of_reach,
    what_undoes_a_sandbox_is_refused,
    attributes_of_files_elsewhere_are_as_the_page_on_security_says,
    flags_change_what_the_profile_says,
    profiles_are_read_from_a_file,
    escalations_are_confined_as_their_verdict_says,
    verdicts_go_no_further_than_the_owners_bound,
    the_session_says_what_is_enforced,
}

fn secrets_are_hidden_and_the_rest_can_be_read(stage: Stage) {
    // That each of these is there to be read is what makes the rest mean something.
    stage
        .outside("cat ~/.ssh/id ~/.aws/credentials ~/.netrc ~/open/file")
        .exits(0);
    stage.cannot("cat ~/.ssh/id");
    stage.cannot("cat ~/.aws/credentials");
    stage.cannot("cat ~/.netrc");
    stage.cannot("cat /etc/shadow");
    stage.cannot("cp -r ~/.ssh copy && cat copy/id");
    stage.cannot("ln ~/.ssh/id id && cat id");
    stage.cannot("mv ~/.ssh mine && cat mine/id");
    stage.cannot("(cd ~/.ssh && cat id)");
    stage.cannot("cat /proc/self/root$HOME/.ssh/id");
    stage.cannot("cat /proc/1/root/etc/shadow");
    stage.can("ln -s ~/.ssh link");
    stage.cannot("cat link/id");
    stage.can("cat ~/open/file $OUTSIDE/file /etc/passwd >/dev/null; ls / ~ >/dev/null");
    // What is not there yet is hidden when it comes; in bubblewrap there is nothing to put something over.
    if stage.backend == "landlock" {
        let mut session = stage.command("echo ready; read line; cat ~/.kube/config");
        let mut running = process::Running::start(&mut session);
        running.wait_for("ready");
        std::fs::create_dir(stage.path("home/.kube")).expect("a directory");
        stage.write("home/.kube/config", "secret-of-mine\n");
        running.tell("");
        let done = running.done();
        assert!(!done.output().contains("secret"), "{done}");
        done.says("Permission denied");
    }
}

fn only_the_working_directory_and_its_own_temporary_one_can_be_written(stage: Stage) {
    stage.can("echo a >a; mkdir d; mv a d/; ln d/a d/b; ln -s a d/c; mkfifo p; rm -r d; : >e; truncate -s 9 e; chmod 700 e");
    stage.can("echo x >$TMPDIR/x; mktemp; mktemp -d; test -O $TMPDIR; [ \"$(stat -c %a $TMPDIR)\" = 700 ]");
    // zsh has its here-documents in files.
    stage
        .can("[ \"$(\"${BASH%/*}/zsh\" -fc 'cat <<<a; cat =(echo b)')\" = \"$(echo a; echo b)\" ]");
    stage.can("echo x >/dev/null; head -c 3 /dev/urandom >/dev/zero");
    for attempt in [
        "echo x >$OUTSIDE/new",
        "echo x >>$OUTSIDE/file",
        ": >$OUTSIDE/file",
        "truncate -s 0 $OUTSIDE/file",
        "rm -f $OUTSIDE/file && ! test -e $OUTSIDE/file",
        "mv $OUTSIDE/file .",
        "mkdir $OUTSIDE/d",
        "ln -s x $OUTSIDE/l",
        "echo x >h; ln h $OUTSIDE/h",
        "mv h $OUTSIDE/h",
        "echo x >~/.bashrc",
        "echo x >/etc/passwd",
        "(cd $OUTSIDE && echo x >new)",
        "echo x >../outside/new",
        "ln -s $OUTSIDE/file soft && echo x >soft",
        "mknod null c 1 3",
        "mknod disk b 8 0",
    ] {
        stage.cannot(attempt);
    }
    let listed = stage.outside("ls $OUTSIDE; cat $OUTSIDE/file");
    listed.prints("file\nsecret-of-mine\n");
    // It goes with the session, whatever the session did with it.
    let own = stage
        .can("echo $TMPDIR; mkdir -p $TMPDIR/a/b; touch $TMPDIR/a/b/left; chmod 0 $TMPDIR/a/b $TMPDIR/a $TMPDIR")
        .output();
    assert!(!Path::new(own.trim_end()).exists(), "{own}");
}

fn a_log_outside_is_written_and_opened_anew_as_the_page_on_security_says(stage: Stage) {
    stage.write("outside/log", "");
    let log = || {
        let mut options = std::fs::OpenOptions::new();
        let log = options.append(true).open(stage.path("outside/log"));
        log.expect("a log")
    };
    let script = "echo by the descriptor >&2
        if echo by its name >>/dev/stderr; then echo could; else echo could not; fi
        if echo by tee | tee -a /dev/stderr >/dev/null; then echo could; else echo could not; fi";
    let output = stage.command(script).stderr(log()).output().expect("run");
    let can = stage.backend == "bubblewrap";
    let expected = if can { "could\n" } else { "could not\n" };
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected.repeat(2),
        "{} {:?}",
        stage.backend,
        stage.user
    );
    let said = std::fs::read_to_string(stage.path("outside/log")).expect("text");
    assert!(said.contains("by the descriptor\n"), "{said}");
    assert_eq!(said.contains("by its name\n"), can, "{said}");
    assert_eq!(said.contains("by tee\n"), can, "{said}");
    let refused = if can { 0 } else { 2 };
    assert_eq!(said.matches("Permission denied").count(), refused, "{said}");
}

fn what_a_killed_gate_left_goes_with_the_next_session(stage: Stage) {
    let parent = stage.path("tmp");
    std::fs::create_dir(&parent).expect("a directory");
    std::fs::set_permissions(&parent, PermissionsExt::from_mode(0o777)).expect("a mode");
    let command = |script: &str| {
        let mut command = stage.command(script);
        command.env("TMPDIR", &parent);
        command
    };
    let script = "touch $TMPDIR/left; echo $TMPDIR; read line; echo $line $TMPDIR/*";
    let start = || {
        let mut running = Running::start(&mut command(script));
        running.wait_for("\n");
        let own = PathBuf::from(running.stdout().trim_end());
        assert!(own.starts_with(&parent) && own.join("left").exists());
        (running, own)
    };
    let (killed, left) = start();
    let (mut living, livings) = start();
    // What only seems to be one: a link, and another user's.
    let link = parent.join("execgate-session-link");
    std::os::unix::fs::symlink(stage.path("outside"), &link).expect("a link");
    let anothers = parent.join("execgate-session-of-another");
    std::fs::create_dir(&anothers).expect("a directory");
    if stage.user == User::Own {
        // That only root can set up.
        let _ = std::os::unix::fs::chown(&anothers, Some(65534), None);
    }
    let owner = |path: &Path| path.metadata().expect("a directory").uid();
    let is_anothers = owner(&anothers) != owner(&left);
    killed.signal("KILL");
    killed.done();
    wait_until("what was left is removed", || {
        process::run(&mut command("true")).exits(0);
        !left.exists()
    });
    // That of a living one isn't touched.
    living.tell("still here");
    let own = livings.display();
    living
        .done()
        .prints(&format!("{own}\nstill here {own}/left\n"));
    assert!(stage.path("outside/file").exists());
    std::fs::remove_file(&link).expect("a link");
    assert!(anothers.exists() || !is_anothers);
    let _ = std::fs::remove_dir(&anothers);
    assert_eq!(parent.read_dir().expect("a directory").count(), 0);
}

/// A line of Python that ends well where the call in it does.
fn python(code: &str) -> String {
    format!("python3 -c 'import ctypes, os, socket, struct, sys\n{code}'")
}

fn there_is_no_network_and_no_named_socket(stage: Stage) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let named = stage.path("outside/socket");
    let _named = UnixListener::bind(&named).expect("a socket");
    std::fs::set_permissions(&named, PermissionsExt::from_mode(0o777)).expect("a mode");
    let named = named.display();
    let abstracted = format!(
        "execgate-test-{}-{:?}-{}",
        std::process::id(),
        stage.user,
        stage.backend
    );
    let address = {
        use std::os::linux::net::SocketAddrExt;
        std::os::unix::net::SocketAddr::from_abstract_name(&abstracted).expect("a name")
    };
    let _abstract = UnixListener::bind_addr(&address).expect("a socket");
    let tcp = python(&format!(
        "socket.create_connection((\"127.0.0.1\", {port}))"
    ));
    let unix = python(&format!(
        "socket.socket(socket.AF_UNIX).connect(\"{named}\")"
    ));
    let hidden = python(&format!(
        "socket.socket(socket.AF_UNIX).connect(\"\\0{abstracted}\")"
    ));
    let datagram = python(&format!(
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.sendto(b\"x\", \"\\0{abstracted}\")"
    ));
    // Outside all of them work, but for a datagram to a stream.
    for attempt in [&tcp, &unix, &hidden] {
        stage.outside(attempt).exits(0);
    }
    for attempt in [&tcp, &unix, &hidden, &datagram] {
        stage.cannot(attempt);
    }
    for domain in [
        "AF_INET, socket.SOCK_DGRAM",
        "AF_INET6",
        "AF_NETLINK, socket.SOCK_RAW",
        "AF_VSOCK",
        "AF_PACKET",
    ] {
        stage.cannot(&python(&format!("socket.socket(socket.{domain})")));
    }
    // Between processes of the session there are pairs.
    stage.can(&python(
        "a, b = socket.socketpair()\na.send(b\"x\")\nassert b.recv(1) == b\"x\"",
    ));
    let stage = stage.option(["--network", "on"]);
    stage.can(&tcp);
    stage.cannot(&unix);
    stage.cannot(&hidden);
}

fn the_gate_is_out_of_reach(stage: Stage) {
    stage.cannot("test $PPID -gt 2 && kill -0 $PPID");
    stage.cannot("test $PPID -gt 2 && cat /proc/$PPID/environ | tr '\\0' '\\n' | grep THE_GATES");
    for name in [
        "environ",
        "maps",
        "mem",
        "auxv",
        "fd/0",
        "cwd/x",
        "root/etc/shadow",
    ] {
        stage.cannot(&format!(
            "test $PPID -gt 2 && cat /proc/$PPID/{name} >/dev/null"
        ));
    }
    stage.cannot("test $PPID -gt 2 && readlink /proc/$PPID/fd/0");
    // What it has open is what it was given: standard descriptors and the session's socket.
    let done = stage.can("for f in /proc/self/fd/*; do readlink $f; done; true");
    let sockets = done
        .output()
        .lines()
        .filter(|line| line.starts_with("socket:"))
        .count();
    assert!(sockets <= 1, "{done}");
    // Nor can it be slowed down, nor anything else of its user.
    let mut other = match stage.user {
        User::Own => Command::new("sleep"),
        User::Nobody => as_nobody("sleep"),
    };
    let mut other = other.arg("600").spawn().expect("a process");
    let pid = other.id();
    stage.can("ulimit -n 100; nice -n 1 true");
    for attempt in [
        "prlimit --core=0:0 --pid",
        "renice -n 19 -p",
        "kill",
        "chrt -i -p 0",
    ] {
        stage.cannot(&format!("{attempt} {pid}"));
    }
    assert_eq!(other.try_wait().expect("a child"), None);
    other.kill().expect("a child");
    other.wait().expect("a child");
    // No session of its own: nothing can be asked, so nothing runs.
    let url = stage.gate.url();
    let wrapper = repository().join("target/dist/libexec/execgate/bash");
    stage.cannot(&format!(
        "{EXECGATE} exec --sandbox none --no-login --verdict-timeout 1s --policy {url} --shell {} -- /bin/true",
        wrapper.display()
    ));
}

fn what_undoes_a_sandbox_is_refused(stage: Stage) {
    let call = |text: &str| {
        python(&format!(
            "libc = ctypes.CDLL(None, use_errno=True)\nsys.exit(0 if libc.{text} >= 0 else 1)"
        ))
    };
    for attempt in [
        "unshare -U true",
        "unshare -r true",
        "unshare -m true",
        "unshare -n true",
        "mount -t tmpfs none $TMPDIR",
        "mount --bind $OUTSIDE $TMPDIR",
        "chroot / true",
    ] {
        stage.cannot(attempt);
    }
    // By number, x86-64's and the general ones: ptrace, process_vm_readv, io_uring_setup, bpf, keyctl,
    // userfaultfd, perf_event_open, pidfd_getfd, open_by_handle_at.
    if cfg!(target_arch = "x86_64") {
        let refused = [
            "101, 0, 0, 0, 0",
            "310, 1, 0, 0, 0, 0, 0",
            "425, 1, ctypes.create_string_buffer(256)",
            "321, 0, 0, 0",
            "250, 0, -3, 1",
            "323, 0",
            "298, ctypes.create_string_buffer(128), 0, -1, -1, 0",
            "438, 0, 0, 0",
            "304, -100, 0, 0",
            "175, 0, 0, 0",
            "246, 0, 0, 0, 0",
        ];
        // clone3 is said not to be there; so is the second set of numbers.
        let absent = ["435, 0, 0", "0x40000000 + 101, 0, 0, 0, 0"];
        let errno = |call: &&str| {
            format!("ctypes.set_errno(0)\nlibc.syscall({call})\nprint(ctypes.get_errno())\n")
        };
        let calls: String = refused.iter().chain(&absent).map(errno).collect();
        let calls = python(&format!(
            "libc = ctypes.CDLL(None, use_errno=True)\n{calls}"
        ));
        // Most of them would fail anyway, in another way.
        let [eperm, enosys] = ["1\n".repeat(refused.len()), "38\n".repeat(absent.len())];
        stage.can(&calls).prints(&(eperm + &enosys));
    }
    // Typing into a terminal, also by a number whose upper half is not empty.
    stage.cannot(&python(
        "import fcntl, pty\nm, s = pty.openpty()\nfcntl.ioctl(s, 0x5412, b\"x\")",
    ));
    stage.cannot(&call("ioctl(0, ctypes.c_ulong(0x100005412), b\"x\")"));
    // Programs that make their user another.
    for attempt in [
        "cp /bin/true own && chmod u+s own",
        "cp /bin/true own && chmod 4755 own",
        "install -m 4755 /bin/true own",
        &python("os.open(\"own2\", os.O_CREAT | os.O_WRONLY, 0o4755)"),
    ] {
        stage.cannot(attempt);
    }
    // Neither in force nor to be taken up again. What could come by executing (`CapBnd`) doesn't: no new privileges.
    let status = "grep -E 'Cap(Inh|Prm|Eff|Amb)|NoNewPrivs' /proc/self/status";
    let status = stage.can(status).output();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let sets = status.lines().filter_map(|line| line.strip_prefix("Cap"));
    let sets: Vec<_> = sets.filter_map(|line| line.split_once(":\t")).collect();
    assert_eq!(sets.len(), 4, "{status}");
    for (_, set) in sets {
        let set = u64::from_str_radix(set, 16).expect("a number");
        assert_eq!(set & !0x4fb, 0, "{status}");
    }
}

fn attributes_of_files_elsewhere_are_as_the_page_on_security_says(stage: Stage) {
    std::os::unix::fs::symlink("secret-target", stage.path("home/.ssh/link")).expect("a link");
    let attempts = [
        "chmod 640 $OUTSIDE/file",
        "touch -m -d 2001-01-01 $OUTSIDE/file",
        "chmod 711 ~/.aws",
        "chmod 600 ~/.ssh/id",
        &python("os.setxattr(os.environ[\"OUTSIDE\"] + \"/file\", \"user.mine\", b\"x\")"),
    ];
    for attempt in attempts {
        if stage.backend == "landlock" {
            stage.can(attempt);
        } else {
            stage.cannot(attempt);
        }
    }
    // None of it opens what is hidden.
    stage.cannot("{ chmod 777 ~/.ssh ~/.ssh/id; cat ~/.ssh/id; }");
    stage.cannot("{ chmod 666 $OUTSIDE/file; echo x >$OUTSIDE/file; }");
    let seen = "[ \"$(readlink ~/.ssh/link)\" = secret-target ] && stat ~/.ssh/id >/dev/null";
    if stage.backend == "landlock" {
        stage.can(seen);
    } else {
        stage.cannot(seen);
    }
    // Flags of a file are changed by ioctl, which the filter sees; file capabilities take a privilege.
    stage
        .outside("chattr +d file 2>/dev/null || : >file && chattr +d file && chattr -d file")
        .exits(0);
    stage.cannot("{ : >own && chattr +d own; }");
    stage.cannot("chattr +d $OUTSIDE/file");
    stage.cannot(&python(
        "open(\"own\", \"w\").close()\nos.setxattr(\"own\", \"security.capability\", struct.pack(\"<IIIII\", 0x02000001, 0x2000, 0, 0, 0))",
    ));
    // What is to be done with one's own files goes on working: this is why nothing of it is refused.
    stage.can(
        "set -e; mkdir d; echo x >d/f; chmod 750 d; touch -d 2001-01-01 d/f; tar -cpf t d; rm -r d; tar -xpf t
         [ \"$(stat -c %a d)\" = 750 ]
         [ \"$(date -r d/f +%Y)\" = 2001 ]; cp -a d e; install -m 555 d/f g; [ \"$(stat -c %a g)\" = 555 ]",
    );
}

fn flags_change_what_the_profile_says(stage: Stage) {
    let outside = stage.path("outside").display().to_string();
    let stage = stage.option([
        "--write", &outside, "--hide", "~/open", "--hide", "./secret",
    ]);
    std::fs::create_dir(stage.path("work/secret")).expect("a directory");
    stage.write("work/secret/file", "secret-of-mine\n");
    stage.cannot("cat secret/file");
    stage.cannot("echo x >secret/new");
    stage.can("echo x >$OUTSIDE/new && rm $OUTSIDE/new");
    stage.cannot("cat ~/open/file");
    // A secret that is named is none; only what is named can be read, and what is always there.
    let ssh = stage.path("home/.ssh").display().to_string();
    let narrow = stage.option(["--read", "/usr", "--read", "/etc", "--read", &ssh]);
    narrow.can("cat ~/.ssh/id");
    narrow.cannot("cat ~/open/file");
    narrow.cannot("ls /var/tmp | grep .");
}

fn profiles_are_read_from_a_file(stage: Stage) {
    let file = stage.path("profiles.toml");
    stage.write(
        "profiles.toml",
        "[build]\nwrite = [\".\", \"~/open\"]\ntemporary = \"none\"\n\n[open]\nsecrets = \"shown\"\nhide = [\"~/.aws\"]\n",
    );
    let file = file.display().to_string();
    let stage = stage.option(["--profiles", &file]);
    // It isn't passed over.
    stage
        .run("true")
        .exits(125)
        .says("nothing says which profile of it holds")
        .says("hint: add --profile NAME");
    let mut build = stage.option(["--profile", "build"]);
    build.can("echo x >~/open/new; test -z \"$TMPDIR\"");
    build.cannot("cat ~/.ssh/id");
    build.options.truncate(2);
    let mut open = build.option(["--profile", "open"]);
    open.can("cat ~/.ssh/id ~/.netrc");
    open.cannot("cat ~/.aws/credentials");
    open.options.truncate(2);
    let open = open.option(["--profile", "opne"]);
    open.run("true")
        .exits(125)
        .says("has no profile `opne`; it has build, open");
    open.write("profiles.toml", "[build]\n\nwirte = []\n");
    open.run("true")
        .exits(125)
        .says("profiles.toml, line 3: unknown field `wirte`");
}

fn escalations_are_confined_as_their_verdict_says(stage: Stage) {
    let outside = stage.path("outside").display().to_string();
    stage.gate.write_rules(&format!(
        "prefix_rule([\"cp\"], \"escalate\")\n\
         prefix_rule([\"tee\"], \"escalate\", execution = \"turn_default\")\n\
         prefix_rule([\"install\"], \"escalate\", execution = permissions(network = \"denied\", write = [\"{outside}\"]))\n\
         prefix_rule([\"cat\"], \"escalate\", execution = permissions(network = \"denied\", read = [\"/usr\", \"/lib\", \"/lib64\", \"{outside}\"]))\n\
         prefix_rule([\"python3\"], \"escalate\", execution = permissions(network = \"allowed\"))\n\
         fallback(\"run\")"
    ));
    wait_for_rules(
        &stage,
        "cp file.none $OUTSIDE 2>&1; cp /etc/hostname $OUTSIDE/escalated",
    );
    // Unsandboxed: what its user may.
    stage.can("cp ~/.ssh/id $OUTSIDE/copied");
    // The session's profile, afresh.
    stage.can(
        "echo x | tee mine >/dev/null && test -s mine && echo x | tee $TMPDIR/mine >/dev/null",
    );
    stage.cannot("echo x | tee $OUTSIDE/no");
    // Permissions: what they name, and no more.
    stage.can("install -m 644 mine $OUTSIDE/installed");
    stage.cannot("install -m 644 mine other");
    stage.cannot("install -m 644 ~/.ssh/id $OUTSIDE/stolen");
    stage.can("cat $OUTSIDE/file");
    stage.cannot("cat mine");
    stage.cannot("cat /etc/passwd");
    stage.cannot("cat ~/.ssh/id");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let connect = python(&format!(
        "socket.create_connection((\"127.0.0.1\", {port}))"
    ));
    stage.can(&connect);
    stage.cannot(&python("open(\"w\", \"w\")"));
    stage
        .outside("ls $OUTSIDE")
        .prints("copied\nescalated\nfile\ninstalled\n");
}

/// Waits until the policy service has taken over its new rules: until this works.
fn wait_for_rules(stage: &Stage, script: &str) {
    process::wait_until("new rules", || stage.run(script).status.success());
}

fn verdicts_go_no_further_than_the_owners_bound(stage: Stage) {
    let outside = stage.path("outside").display().to_string();
    let home = stage.path("home").display().to_string();
    stage.gate.write_rules(&format!(
        "prefix_rule([\"cp\"], \"escalate\")\n\
         prefix_rule([\"tee\"], \"escalate\", execution = \"turn_default\")\n\
         prefix_rule([\"install\"], \"escalate\", execution = permissions(network = \"denied\", write = [\"{outside}\"]))\n\
         prefix_rule([\"touch\"], \"escalate\", execution = permissions(network = \"denied\", write = [\"{home}\"]))\n\
         prefix_rule([\"cat\"], \"escalate\", execution = permissions(network = \"denied\", read = [\"{home}/.ssh\"]))\n\
         prefix_rule([\"python3\"], \"escalate\", execution = permissions(network = \"allowed\"))\n\
         fallback(\"run\")"
    ));
    wait_for_rules(&stage, "echo x >m; install -m 644 m $OUTSIDE/first");
    stage.write(
        "profiles.toml",
        &format!("[most]\nwrite = [\".\", \"{outside}\"]\n"),
    );
    let file = stage.path("profiles.toml").display().to_string();
    let stage = stage.option(["--profiles", &file, "--escalation-bound", "most"]);
    stage.can("install -m 644 m $OUTSIDE/second; echo x | tee again");
    let refused = |script: &str, why: &str| {
        let done = stage.run(script);
        assert!(!done.status.success(), "{done}");
        done.says("the gate's owner allows escalations no more than the profile `most` does")
            .says(why);
        assert!(!done.output().contains("secret-of-mine"), "{done}");
    };
    refused(
        "cp m $OUTSIDE/third",
        "the verdict is to run it under no sandbox",
    );
    refused("touch ~/new", &format!("the verdict grants writing {home}"));
    refused(
        "cat ~/.ssh/id",
        &format!("the verdict grants reading {home}/.ssh"),
    );
    refused("python3 -c 1", "the verdict grants the network");
    stage.outside("ls $OUTSIDE").prints("file\nfirst\nsecond\n");
}

fn the_session_says_what_is_enforced(stage: Stage) {
    stage.gate.write_rules(
        "def decide(exec):\n    s = exec.sandbox\n    return deny(reason = \" \".join([s.backend, s.enforcement, s.profile, \
         str(s.not_enforced), s.version]))\n",
    );
    let expected = match stage.backend {
        "landlock" => "landlock full default [] landlock ",
        _ => "bubblewrap full default [] bubblewrap ",
    };
    process::wait_until("new rules", || {
        stage.run("uname").errors().contains("denied")
    });
    stage.run("uname").says(expected);
    let changed = stage.option(["--hide", "~/open"]);
    changed.run("uname").says("full default (changed) []");
}

#[test]
fn a_sandbox_of_ones_own_is_a_command_line() {
    let Some(stage) = Stage::new(
        "command:env SANDBOXED={profile}:{network} {command}",
        User::Own,
        RUN,
    ) else {
        return;
    };
    stage
        .run("true")
        .exits(125)
        .says("nobody but its owner knows what a sandbox of one's own enforces")
        .says("hint: --accept-partial-sandbox");
    let stage = stage.option(["--accept-partial-sandbox"]);
    stage.can("echo $SANDBOXED").prints("default:off\n");
}

#[test]
fn no_sandbox_is_said_loudly() {
    let Some(stage) = Stage::new("none", User::Own, RUN) else {
        return;
    };
    stage
        .run("true")
        .exits(0)
        .says("no sandbox: what runs in this session can do all that its user can");
    let stage = stage.option(["--hide", "/etc"]);
    stage.run("true").exits(125).says("--hide needs a sandbox");
}

#[test]
fn the_gates_own_files_are_hidden_wherever_they_are() {
    let Some(stage) = Stage::new("landlock", User::Own, RUN) else {
        return;
    };
    stage.write("outside/token", "secret-of-mine\n");
    std::fs::set_permissions(
        stage.path("outside/token"),
        PermissionsExt::from_mode(0o600),
    )
    .expect("a mode");
    let journal = stage.path("outside/journal");
    std::fs::create_dir(&journal).expect("a directory");
    std::fs::set_permissions(&journal, PermissionsExt::from_mode(0o700)).expect("a mode");
    let token = stage.path("outside/token").display().to_string();
    let stage = stage.option(["--journal", journal.to_str().expect("text")]);
    let stage = stage.option(["--policy-token-file", &token]);
    stage.cannot("cat $OUTSIDE/journal/*");
    stage.cannot("cat $OUTSIDE/token");
    stage.can("cat $OUTSIDE/file");
}

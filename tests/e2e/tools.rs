//! Tools that people use, each at a small real job in the default profile of each sandbox.

#![allow(
    clippy::needless_pass_by_value,
    reason = "a stage is its test's, which may change it"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::stage::{Stage, User, everywhere};

everywhere! {
    real_tools_work,
    what_a_tool_is_refused_it_says,
}

fn real_tools_work(stage: Stage) {
    stage.can(
        "set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; \
         git init -q repo; cd repo; echo x >f; git add .; git commit -qm one; git mv f g; git commit -qam two; \
         git clone -q . ../clone; git -C ../clone log --oneline | wc -l | grep -q 2; git gc -q; git fsck; git stash list",
    );
    stage.can(
        "set -e; printf 'int main(void) { return 0; }\\n' >m.c; printf 'm: m.c\\n\\tcc -O1 -g -o m m.c -lm\\n' >Makefile; \
         make -j4 && ./m && make -q",
    );
    stage.can(
        "python3 -c 'import subprocess, tempfile, threading, concurrent.futures as c\nsubprocess.run([\"sh\", \"-c\", \"true\"], check=True)\n\
         f = tempfile.TemporaryFile(); f.write(b\"x\")\nprint(list(c.ThreadPoolExecutor(4).map(abs, range(4))))'; \
         python3 -m venv --without-pip v && v/bin/python -c 1",
    );
    if Path::new("/usr/bin/node").exists() {
        stage.can(
            "node -e 'require(\"fs\").writeFileSync(\"n\", \"x\"); require(\"child_process\").execSync(\"true\"); \
             new (require(\"worker_threads\").Worker)(\"1\", {eval: true}).on(\"exit\", c => process.exit(c))'",
        );
    }
    if Path::new("/usr/bin/npm").exists() {
        stage.write("work/package.json", "{\"name\": \"small\", \"version\": \"1.0.0\", \"scripts\": {\"test\": \"node -e 0\"}}\n");
        // Its cache is in the home directory unless it is told otherwise.
        stage.can("export npm_config_cache=$TMPDIR/npm; npm test --silent && npm pack --silent --offline && test -s small-1.0.0.tgz");
    }
    // Cargo's own program rather than what chooses one, which is in a home.
    let cargo = std::env::var_os("CARGO")
        .map(PathBuf::from)
        .filter(|path| path.is_file());
    if let Some(toolchain) = cargo.as_deref().and_then(|cargo| cargo.parent()?.parent()) {
        let usable = Command::new("setpriv")
            .args([
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                "--",
            ])
            .arg(toolchain.join("bin/rustc"))
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if stage.user == User::Own || usable {
            stage.can(&format!(
                "set -e; export PATH={}/bin:$PATH CARGO_HOME=$PWD/cargo CARGO_NET_OFFLINE=true; mkdir -p c/src; cd c; \
                 printf '[package]\\nname = \"small\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n' >Cargo.toml; \
                 printf 'fn main() {{ println!(\"built\"); }}\\n#[test] fn t() {{}}\\n' >src/main.rs; \
                 printf 'fn main() {{}}\\n' >build.rs; cargo run -q; cargo test -q",
                toolchain.display()
            ));
        }
    }
}

/// By its own message, and with a status that isn't 0.
fn what_a_tool_is_refused_it_says(stage: Stage) {
    let (denied, unreachable) = match stage.backend {
        "landlock" => (
            &["Permission denied", "EACCES"][..],
            "Operation not permitted",
        ),
        _ => (
            &["Read-only file system", "EROFS"][..],
            "Operation not permitted",
        ),
    };
    stage.write("work/m.c", "int main(void) { return 0; }\n");
    stage.write(
        "work/Makefile",
        "install: m.c\n\tinstall -m 644 m.c $(OUTSIDE)/m.c\n",
    );
    let mut refusals = vec![
        "git init $OUTSIDE/repository",
        "git -c user.name=a -c user.email=a@b init -q here && cd here && git config --global a.b c",
        "make install",
        "gcc -o $OUTSIDE/m m.c",
        "python3 -c 'import os; open(os.environ[\"OUTSIDE\"] + \"/x\", \"w\")'",
        "tar -C $OUTSIDE -xf <(tar -cf - m.c)",
    ];
    if Path::new("/usr/bin/node").exists() {
        refusals
            .push("node -e 'require(\"fs\").writeFileSync(process.env.OUTSIDE + \"/x\", \"x\")'");
    }
    for script in refusals {
        let done = stage.run(script);
        assert!(!done.status.success(), "{script}: {done}");
        let says = |text: &&str| done.errors().contains(text) || done.output().contains(text);
        assert!(denied.iter().any(says), "{script}: {done}");
    }
    let done =
        stage.run("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9))'");
    assert!(!done.status.success(), "{done}");
    done.says(unreachable);
    // What can't be reached can't be cloned, and nothing waits for it.
    let done = stage.run("timeout 60 git clone -q https://127.0.0.1:9/x there");
    assert_eq!(done.status.code(), Some(128), "{done}");
    done.says("unable to access");
    stage.outside("ls $OUTSIDE").prints("file\n");
}

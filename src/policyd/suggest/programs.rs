//! What is known of programs: how much of a command line says what they do.
//!
//! A program that isn't here may do anything with its arguments. `SECURITY.md`, "Arguments that are code", says more.

/// How a program takes its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As names of files and what to do with these, and never as code.
    Plain,
    /// By a subcommand, one of these where what follows is no code, but for these options.
    Subcommands {
        plain: &'static [&'static str],
        code: &'static [&'static str],
    },
    /// As operands that are no code, with options of which these are.
    Options { code: &'static [&'static str] },
    /// As code, for this reason.
    Code(&'static str),
    /// Nobody knows.
    Unknown,
}

const INTERPRETER: &str = "its arguments and what it reads are a program";
const LAUNCHER: &str = "its arguments are a command of which nobody would be asked";
const REMOTE: &str = "options such as ProxyCommand are commands, and others go to another host";
const ARCHIVER: &str = "options such as --checkpoint-action and --to-command are commands";
const BUILDER: &str = "it runs what files of the directory say, and options name such files";
const SHELL_INSIDE: &str = "it has a shell inside, or runs what its configuration says";
const SERVANT: &str = "it has a service with more rights do what it is told";

const PLAIN: &[&str] = &[
    "[",
    "b2sum",
    "base32",
    "base64",
    "basename",
    "bunzip2",
    "bzcat",
    "bzip2",
    "cat",
    "chgrp",
    "chmod",
    "chown",
    "cksum",
    "cmp",
    "comm",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "expand",
    "expr",
    "factor",
    "false",
    "fgrep",
    "file",
    "fmt",
    "fold",
    "free",
    "getconf",
    "grep",
    "groups",
    "gunzip",
    "gzip",
    "head",
    "hexdump",
    "hostname",
    "id",
    "install",
    "join",
    "link",
    "ln",
    "locale",
    "logname",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mktemp",
    "mv",
    "nl",
    "nproc",
    "od",
    "paste",
    "pathchk",
    "pr",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "rev",
    "rm",
    "rmdir",
    "seq",
    "sha1sum",
    "sha224sum",
    "sha256sum",
    "sha384sum",
    "sha512sum",
    "shuf",
    "sleep",
    "stat",
    "strings",
    "stty",
    "sum",
    "sync",
    "tac",
    "tail",
    "tee",
    "test",
    "touch",
    "tr",
    "true",
    "truncate",
    "tsort",
    "tty",
    "uname",
    "unexpand",
    "uniq",
    "unlink",
    "unxz",
    "uptime",
    "users",
    "wc",
    "which",
    "who",
    "whoami",
    "xxd",
    "xz",
    "xzcat",
    "yes",
    "zcat",
    "zstd",
];

const GIT: Kind = Kind::Subcommands {
    plain: &[
        "add",
        "apply",
        "blame",
        "branch",
        "cat-file",
        "check-ignore",
        "checkout",
        "commit",
        "describe",
        "diff",
        "for-each-ref",
        "init",
        "log",
        "ls-files",
        "ls-tree",
        "merge-base",
        "mv",
        "name-rev",
        "reset",
        "restore",
        "rev-list",
        "rev-parse",
        "rm",
        "shortlog",
        "show",
        "show-ref",
        "stash",
        "status",
        "switch",
        "symbolic-ref",
        "tag",
        "update-index",
        "version",
        "write-tree",
    ],
    code: &[
        "--ext-diff",
        "--textconv",
        "--exec",
        "--exec-path",
        "--config-env",
        "--upload-pack",
        "--output",
    ],
};
const CARGO: Kind = Kind::Subcommands {
    plain: &[
        "bench", "build", "check", "clean", "clippy", "doc", "fetch", "fmt", "metadata", "test",
        "tree", "update", "version",
    ],
    code: &["--config", "--manifest-path", "-Z", "-C"],
};
const NPM: Kind = Kind::Subcommands {
    plain: &[
        "audit", "ci", "install", "ls", "outdated", "pack", "test", "version", "view",
    ],
    code: &[
        "--script-shell",
        "--node-options",
        "--prefix",
        "--userconfig",
        "--globalconfig",
        "--shell",
        "-C",
    ],
};
const GO: Kind = Kind::Subcommands {
    plain: &["build", "doc", "fmt", "list", "test", "version", "vet"],
    code: &[
        "-exec",
        "-toolexec",
        "-ldflags",
        "-gcflags",
        "-asmflags",
        "-overlay",
        "-modfile",
        "-vettool",
        "-C",
    ],
};

const FIND: Kind = Kind::Options {
    code: &[
        "-exec",
        "-execdir",
        "-ok",
        "-okdir",
        "-delete",
        "-fprintf",
        "-fprint",
        "-fprint0",
        "-fls",
        "-files0-from",
    ],
};
const COMPILER: Kind = Kind::Options {
    code: &[
        "-B",
        "-wrapper",
        "-fplugin",
        "-specs",
        "--specs",
        "-Wl",
        "-Wa",
        "-Wp",
        "-Xlinker",
        "-Xassembler",
        "-Xclang",
        "-fuse-ld",
        "-load",
        "--sysroot",
        "-fpass-plugin",
        "-Xpreprocessor",
    ],
};
const SORT: Kind = Kind::Options {
    code: &["--compress-program", "--files0-from"],
};
const SPLIT: Kind = Kind::Options {
    code: &["--filter"],
};

const CODE: &[(&str, &[&str])] = &[
    (
        INTERPRETER,
        &[
            "ash",
            "awk",
            "bash",
            "bc",
            "busybox",
            "csh",
            "dash",
            "dc",
            "deno",
            "ed",
            "elixir",
            "emacs",
            "erl",
            "ex",
            "expect",
            "fish",
            "gawk",
            "ghci",
            "guile",
            "irb",
            "java",
            "js",
            "jshell",
            "julia",
            "ksh",
            "lua",
            "luajit",
            "m4",
            "mawk",
            "mksh",
            "nawk",
            "node",
            "nodejs",
            "ocaml",
            "osascript",
            "perl",
            "php",
            "pwsh",
            "pypy",
            "python",
            "racket",
            "rbash",
            "R",
            "Rscript",
            "ruby",
            "scala",
            "sed",
            "sh",
            "sqlite",
            "tclsh",
            "tcsh",
            "toybox",
            "vim",
            "wish",
            "zsh",
        ],
    ),
    (
        LAUNCHER,
        &[
            "chroot",
            "chrt",
            "command",
            "coproc",
            "doas",
            "entr",
            "env",
            "exec",
            "faketime",
            "firejail",
            "flock",
            "gdb",
            "ionice",
            "ltrace",
            "nice",
            "nohup",
            "npx",
            "nsenter",
            "parallel",
            "perf",
            "pkexec",
            "prlimit",
            "proot",
            "runuser",
            "script",
            "setarch",
            "setpriv",
            "setsid",
            "setuidgid",
            "start-stop-daemon",
            "stdbuf",
            "strace",
            "su",
            "sudo",
            "systemd-run",
            "taskset",
            "time",
            "timeout",
            "unshare",
            "valgrind",
            "watch",
            "xargs",
            "xvfb-run",
        ],
    ),
    (
        REMOTE,
        &[
            "mosh", "rsh", "rsync", "scp", "sftp", "slogin", "ssh", "sshfs", "telnet",
        ],
    ),
    (
        ARCHIVER,
        &["7z", "7za", "bsdtar", "cpio", "pax", "star", "tar", "zip"],
    ),
    (
        BUILDER,
        &[
            "ant", "autoconf", "automake", "bazel", "bundle", "clang", "clang++", "cmake",
            "composer", "ctest", "gem", "gmake", "gradle", "just", "ld", "libtool", "make",
            "meson", "mvn", "ninja", "patch", "pip", "pipx", "pnpm", "poetry", "rake", "rustc",
            "scons", "tox", "uv", "yarn",
        ],
    ),
    (
        SHELL_INSIDE,
        &[
            "curl", "ftp", "less", "mail", "man", "more", "most", "mutt", "mysql", "nano",
            "openssl", "pg", "psql", "screen", "sqlite3", "tmux", "vi", "view", "wget",
        ],
    ),
    (
        SERVANT,
        &[
            "apt",
            "apt-get",
            "at",
            "batch",
            "crictl",
            "crontab",
            "ctr",
            "dnf",
            "docker",
            "dpkg",
            "helm",
            "kubectl",
            "nerdctl",
            "podman",
            "rpm",
            "snap",
            "systemctl",
            "terraform",
            "virsh",
            "yum",
        ],
    ),
];

/// Of the system's program with this name.
pub(super) fn kind_of(name: &str) -> Kind {
    known(name)
        // Several versions of a program stand beside each other: python3.11, gcc-12.
        .or_else(|| known(name.trim_end_matches(|c: char| c.is_ascii_digit() || ".-".contains(c))))
        .unwrap_or(Kind::Unknown)
}

fn known(name: &str) -> Option<Kind> {
    if PLAIN.contains(&name) {
        return Some(Kind::Plain);
    }
    if let Some((reason, _)) = CODE.iter().find(|(_, names)| names.contains(&name)) {
        return Some(Kind::Code(reason));
    }
    Some(match name {
        "git" => GIT,
        "cargo" => CARGO,
        "npm" => NPM,
        "go" => GO,
        "find" => FIND,
        "sort" => SORT,
        "split" => SPLIT,
        "cc" | "gcc" | "c++" | "g++" | "cpp" => COMPILER,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_program_are_that_program() {
        for (name, like) in [
            ("python3.11", "python"),
            ("perl5.36.0", "perl"),
            ("gcc-12", "gcc"),
            ("lua5.4", "lua"),
        ] {
            assert_eq!(kind_of(name), kind_of(like), "{name}");
            assert_ne!(kind_of(name), Kind::Unknown, "{name}");
        }
        assert_eq!(kind_of("bzip2"), Kind::Plain);
        assert_eq!(kind_of("tool-of-ours"), Kind::Unknown);
    }

    #[test]
    fn no_program_is_plain_whose_arguments_are_known_to_be_code() {
        for (_, names) in CODE {
            for name in *names {
                assert!(!PLAIN.contains(name), "{name}");
                assert!(matches!(kind_of(name), Kind::Code(_)), "{name}");
            }
        }
    }
}

//! What an escalated command gets of the environment that a process of the session chose for it.
//!
//! Variables that make programs load or run something, or tell them where to look for what they load,
//! are taken out or have the gate's own values, unless the verdict says otherwise.
//! `docs/escalated-environment.md` has the same list for people, with where it is from.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::model::{Environment, EnvironmentDifference, EnvironmentRules, NamePattern};

/// Where escalated commands look for programs, unless the gate's owner or the verdict says otherwise.
pub const ESCALATED_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names that are taken out; with a `*` at its end: all that begin so.
const TAKEN_OUT: &[&str] = &[
    // The dynamic linker and the C library.
    "LD_*",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "GETCONF_DIR",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "LOCPATH",
    "MALLOC_*",
    "NIS_PATH",
    "NLSPATH",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "TZDIR",
    "GMON_OUT_PREFIX",
    "MEMUSAGE_*",
    "PCPROFILE_OUTPUT",
    "SEGFAULT_*",
    "SOTRUSS_*",
    "TEXTDOMAINDIR",
    // What libraries write, wherever they are told.
    "CPUPROFILE*",
    "GOCOVERDIR",
    "HEAPPROFILE*",
    "SSLKEYLOGFILE",
    // Temporary files.
    "TMPDIR",
    "TMP",
    "TEMP",
    "TMPPREFIX",
    "TEMPDIR",
    // Shells.
    "BASHOPTS",
    "BASH_ENV",
    "BASH_FUNC_*",
    "BASH_LOADABLES_PATH",
    "BASH_XTRACEFD",
    "CDPATH",
    "ENV",
    "FPATH",
    "GLOBIGNORE",
    "IFS",
    "INPUTRC",
    "MAIL",
    "MAILPATH",
    "MODULE_PATH",
    "NULLCMD",
    "POSIXLY_CORRECT",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "READNULLCMD",
    "SHELLOPTS",
    "ZDOTDIR",
    "EXECIGNORE",
    "HISTFILE",
    "RPROMPT",
    "RPROMPT2",
    "RPS1",
    "RPS2",
    "SPROMPT",
    "PROMPT",
    "PROMPT2",
    "PROMPT3",
    "PROMPT4",
    // Terminals.
    "TERMCAP",
    "TERMINFO",
    "TERMINFO_DIRS",
    "TERMPATH",
    // Programs that others start.
    "ASKPASS",
    "BROWSER",
    "DIFF_PAGER",
    "EDITOR",
    "FCEDIT",
    "MANOPT",
    "MANPAGER",
    "MANPATH",
    "MORE",
    "PAGER",
    "SUDO_ASKPASS",
    "SUDO_EDITOR",
    "VISUAL",
    "ALTERNATE_EDITOR",
    "BAT_*",
    "DBUS_*",
    "DELTA_PAGER",
    "EDITRC",
    "FZF_*",
    "GROFF_*",
    "JAVACMD",
    "LESS*",
    "MAILCAPS",
    "MANROFFOPT",
    "GH_BROWSER",
    "GH_CONFIG_DIR",
    "GH_EDITOR",
    "GH_PAGER",
    "GH_PATH",
    "GLAB_*",
    "JJ_EDITOR",
    "LIBVIRT_*",
    "PINENTRY_USER_DATA",
    "SKIM_*",
    "SSH_*",
    "SYSTEMD_*",
    "TEXEDIT",
    // Directories of configuration.
    "XDG_*",
    "GNUPGHOME",
    "AWS_*",
    "CLOUDSDK_*",
    "DOCKER_*",
    "NETRC",
    "OPENSSL_CONF",
    "OPENSSL_ENGINES",
    "OPENSSL_MODULES",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "CURL_HOME",
    "WGETRC",
    "ANSIBLE_*",
    "AZURE_*",
    "BUILDAH_*",
    "COMPOSE_*",
    "CONTAINERS_*",
    "CONTAINER_*",
    "GOOGLE_*",
    "GPG_AGENT_INFO",
    "HELM_*",
    "KUBE*",
    "PODMAN_*",
    "REQUESTS_CA_BUNDLE",
    "SYSTEM_WGETRC",
    "TF_*",
    "VAGRANT_*",
    "VAULT_*",
    // Version control.
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_ASKPASS",
    "GIT_ATTR_*",
    "GIT_CEILING_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG*",
    "GIT_DIR",
    "GIT_EDITOR",
    "GIT_EXEC_PATH",
    "GIT_EXTERNAL_DIFF",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PAGER*",
    "GIT_PROXY_COMMAND",
    "GIT_REDIRECT_*",
    "GIT_SEQUENCE_EDITOR",
    "GIT_SSH*",
    "GIT_SSL_*",
    "GIT_TEMPLATE_DIR",
    "GIT_TRACE*",
    "GIT_WORK_TREE",
    "CVS_RSH",
    "HG*",
    "RSYNC_*",
    "SVN_*",
    "GIT_ALLOW_PROTOCOL",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_EXT_*",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INTERNAL_*",
    "GIT_PROTOCOL*",
    "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_SUPER_PREFIX",
    "GIT_TEST_*",
    "GIT_TEXTDOMAINDIR",
    "CVSROOT",
    "CVS_SERVER",
    "BRZ_*",
    "BZR_*",
    "DARCS_*",
    "P4*",
    // Interpreters.
    "PYTHON*",
    "VIRTUAL_ENV",
    "PERL5*",
    "PERLLIB",
    "PERLIO*",
    "PERL_*",
    "RUBY*",
    "GEM_*",
    "BUNDLE_*",
    "NODE_*",
    "NPM_*",
    "npm_*",
    "DENO_*",
    "BUN_*",
    "YARN_*",
    "LUA_*",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "R_*",
    "GUILE_*",
    "JULIA_*",
    "ERL_*",
    "ELIXIR_*",
    "AWKPATH",
    "AWKLIBPATH",
    "M4PATH",
    "VIMINIT",
    "VIM",
    "VIMRUNTIME",
    "EXINIT",
    "BC_ENV_ARGS",
    "CAML_LD_LIBRARY_PATH",
    "COMPOSER_*",
    "CONDA_*",
    "DC_ENV_ARGS",
    "EMACS*",
    "GHC*",
    "MIX_*",
    "HEX_*",
    "NIX_*",
    "OCAML*",
    "OCTAVE_*",
    "OPAM*",
    "PIPENV_*",
    "PIP_*",
    "POETRY_*",
    "STACK_CONFIG",
    "STACK_GLOBAL_CONFIG",
    "STACK_ROOT",
    "STACK_WORK",
    "STACK_YAML",
    "PLTCOLLECTS",
    "SBCL_HOME",
    "TCL*",
    "TK_LIBRARY",
    "UV_*",
    "VIRTUALENV_*",
    // Virtual machines.
    "CLASSPATH",
    "IBM_JAVA_OPTIONS",
    "JAVA_HOME",
    "JAVA_OPTS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "GRADLE_*",
    "MAVEN_*",
    "CORECLR_*",
    "COMPlus_*",
    "ELECTRON_*",
    "MONO_*",
    "DOTNET_*",
    "ANT_*",
    "GROOVY_*",
    "JAVA_COMPILER",
    "LEIN_*",
    "M2_HOME",
    "OPENJ9_JAVA_OPTIONS",
    "SBT_OPTS",
    // Compilers and what builds, and what instruments what they make.
    "AR",
    "AS",
    "CC",
    "CFLAGS",
    "COMPILER_PATH",
    "CPATH",
    "CPP",
    "CPPFLAGS",
    "CXX",
    "CXXFLAGS",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LDFLAGS",
    "LIBRARY_PATH",
    "GNUMAKEFLAGS",
    "MAKE",
    "MAKEFILES",
    "MAKEFLAGS",
    "MFLAGS",
    "CMAKE_*",
    "PKG_CONFIG*",
    "CARGO*",
    "RUSTC*",
    "RUSTDOC*",
    "RUSTFLAGS",
    "RUSTUP_*",
    "CGO_*",
    "ACLOCAL*",
    "AUTOCONF",
    "AUTOHEADER",
    "AUTOM4TE",
    "AUTOMAKE",
    "CCACHE_*",
    "CCC_*",
    "COLLECT_*",
    "CONFIG_SHELL",
    "CONFIG_SITE",
    "DEPENDENCIES_OUTPUT",
    "DISTCC_*",
    "FC",
    "F77",
    "FFLAGS",
    "GCC_*",
    "GCOV_PREFIX*",
    "GO111MODULE",
    "GOBIN",
    "GOCACHE*",
    "GODEBUG",
    "GOENV",
    "GOEXPERIMENT",
    "GOFLAGS",
    "GOINSECURE",
    "GOMODCACHE",
    "GONO*",
    "GOPATH",
    "GOPRIVATE",
    "GOPROXY",
    "GOROOT",
    "GOSUMDB",
    "GOTMPDIR",
    "GOTOOL*",
    "GOVCS",
    "GOWORK",
    "LD",
    "LEX",
    "LLVM_*",
    "M4",
    "MAKESHELL",
    "NINJA_*",
    "NM",
    "OBJC*",
    "OBJDUMP",
    "RANLIB",
    "SCCACHE_*",
    "STRIP",
    "SUNPRO_DEPENDENCIES",
    "SWIFT_DRIVER_*",
    "SWIFT_EXEC",
    "YACC",
    "ASAN_*",
    "LSAN_*",
    "MSAN_*",
    "TSAN_*",
    "UBSAN_*",
    // Libraries that load modules.
    "GIO_*",
    "GTK_*",
    "QT_*",
    "GST_*",
    "KRB5_*",
    "KRB5CCNAME",
    "PKCS11_*",
    "SASL_PATH",
    "ALSA_CONFIG_*",
    "CUDA_*",
    "FONTCONFIG_*",
    "FREI0R_PATH",
    "GBM_*",
    "GDK_*",
    "GI_TYPELIB_PATH",
    "GSETTINGS_*",
    "GVFS_*",
    "LADSPA_PATH",
    "LDAP*",
    "LIBGL_*",
    "LIBMYSQL_*",
    "LIBVA_*",
    "LV2_PATH",
    "MAGICK_*",
    "MESA_*",
    "FI_PROVIDER_PATH",
    "GDAL_*",
    "HDF5_PLUGIN_PATH",
    "NVBLAS_CONFIG_FILE",
    "OCL_ICD_*",
    "OMPI_MCA_*",
    "UCX_*",
    "ODBC*",
    "PANGO_*",
    "QML*",
    "VDPAU_*",
    "VK_*",
    "__EGL_*",
    "__GLX_*",
    // Options and scripts of single programs.
    "GREP_OPTIONS",
    "TAR_OPTIONS",
    "TAPE",
    "RSH",
    "BZIP2",
    "BZIP",
    "XZ_DEFAULTS",
    "XZ_OPT",
    "SUDO_PROMPT",
    "DPKG_*",
    "APT_CONFIG",
    "DEBIAN_FRONTEND",
    "EXECGATE_*",
    "EXEC_WRAPPER",
    "BASH_EXEC_WRAPPER",
    "GZIP",
    "ACKRC",
    "ACK_*",
    "DEBCONF_*",
    "DEBUGINFOD_*",
    "GDBHISTFILE",
    "GS_*",
    "LYNX_*",
    "MAILRC",
    "MARIADB_*",
    "MYSQL_*",
    "PG*",
    "PSQL*",
    "QEMU_*",
    "BORG_*",
    "RCLONE_*",
    "RESTIC_*",
    "RIPGREP_CONFIG_PATH",
    "RPM_*",
    "SCREENRC",
    "SCREENDIR",
    "SQLITE_HISTORY",
    "SYSSCREENRC",
    "TEXFORMATS",
    "TEXINPUTS*",
    "TEXMF*",
    "TEXPOOL",
    "TMUX*",
    "TNS_ADMIN",
    "UNZIP*",
    "VALGRIND_*",
    "XENVIRONMENT",
    "XAPPLRESDIR",
    "XFILESEARCHPATH",
    "XUSERFILESEARCHPATH",
    "ZIP",
    "ZIPINFO*",
    "ZIPOPT",
    "openin_any",
    "openout_any",
    "shell_escape*",
];

/// Variables that are harmless but where their value leads to a file, or changes how a message is formatted; with
/// a `*` as above. The value is looked at.
const LOOKED_AT: &[&str] = &[
    "COLORTERM",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LINGUAS",
    "TERM",
    "TZ",
];

/// Variables of the gate's owner, which escalated commands get instead of the session's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnersEnvironment {
    /// `PATH`.
    pub path: OsString,
    /// `HOME`; `None`: the command gets none.
    pub home: Option<OsString>,
    /// `SHELL`; `None`: the command gets none.
    pub shell: Option<OsString>,
}

impl OwnersEnvironment {
    /// With [`ESCALATED_PATH`], and the rest as this process has it.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            path: ESCALATED_PATH.into(),
            home: std::env::var_os("HOME"),
            shell: std::env::var_os("SHELL"),
        }
    }

    /// The owner's value of a variable.
    fn value(&self, name: &[u8]) -> Owners<'_> {
        let value = match name {
            b"PATH" => Some(&*self.path),
            b"HOME" => self.home.as_deref(),
            b"SHELL" => self.shell.as_deref(),
            _ => return Owners::Nothing,
        };
        value.map_or(Owners::Unset, Owners::Value)
    }
}

/// What the owner says of a variable.
enum Owners<'a> {
    /// It has this value.
    Value(&'a OsStr),
    /// There is none.
    Unset,
    /// Nothing: it isn't the owner's.
    Nothing,
}

fn is_in(list: &[&str], name: &[u8]) -> bool {
    list.iter().any(|pattern| {
        let pattern = pattern.as_bytes();
        match pattern.strip_suffix(b"*") {
            Some(beginning) => name.starts_with(beginning),
            None => pattern == name,
        }
    })
}

/// Whether a variable isn't for an escalated command; `entry` is the whole of it.
fn is_taken_out(name: &[u8], entry: &OsStr) -> bool {
    let value = entry.as_bytes().get(name.len() + 1..).unwrap_or_default();
    is_in(TAKEN_OUT, name) || is_in(LOOKED_AT, name) && !leads_nowhere(name, value)
}

/// Whether the value of a variable that is looked at is no more than a name. That of `TZ` may have slashes, and is
/// looked for in the system's own directory then.
fn leads_nowhere(name: &[u8], value: &[u8]) -> bool {
    if name != b"TZ" {
        return !value.contains(&b'/') && !value.contains(&b'%');
    }
    let file = value.strip_prefix(b":").unwrap_or(value);
    let mut parts = file.split(|byte| *byte == b'/');
    !file.starts_with(b"/") && parts.all(|part| part != b"..")
}

/// The environment of an escalated command, and how it differs from `asked`.
pub(super) fn escalated(
    asked: &Environment,
    rules: &EnvironmentRules,
    owner: &OwnersEnvironment,
) -> (Environment, EnvironmentDifference) {
    let is_among =
        |patterns: &[NamePattern], name| patterns.iter().any(|pattern| pattern.matches(name));
    let mut entries = Vec::with_capacity(asked.0.len());
    let mut difference = EnvironmentDifference::default();
    let mut told = HashSet::new();
    for (name, entry) in asked.names().zip(&asked.0) {
        if rules.set.iter().any(|(set, _)| set.as_bytes() == name) {
            continue;
        }
        let kept = is_among(&rules.keep, name);
        let list = if is_among(&rules.unset, name) {
            &mut difference.unset
        } else if kept {
            entries.push(entry.clone());
            continue;
        } else {
            match owner.value(name) {
                Owners::Value(value) => {
                    let own = variable(OsStr::from_bytes(name), value);
                    let is_changed = own != *entry;
                    entries.push(own);
                    if !is_changed {
                        continue;
                    }
                    &mut difference.reset
                }
                Owners::Unset => &mut difference.removed,
                Owners::Nothing if is_taken_out(name, entry) => &mut difference.removed,
                Owners::Nothing => {
                    entries.push(entry.clone());
                    continue;
                }
            }
        };
        if told.insert(name) {
            list.push(OsString::from_vec(name.to_vec()));
        }
    }
    entries.extend(rules.set.iter().map(|(name, value)| variable(name, value)));
    difference.set.clone_from(&rules.set);
    (Environment(entries), difference)
}

fn variable(name: &OsStr, value: &OsStr) -> OsString {
    [name, value].join(OsStr::new("="))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(entries: &[&str]) -> Environment {
        Environment(entries.iter().map(OsString::from).collect())
    }

    fn patterns(names: &[&str]) -> Vec<NamePattern> {
        names
            .iter()
            .map(|name| NamePattern(name.as_bytes().to_vec()))
            .collect()
    }

    fn owner() -> OwnersEnvironment {
        OwnersEnvironment {
            path: "/bin".into(),
            home: Some("/owners".into()),
            shell: None,
        }
    }

    const ASKED: [&str; 10] = [
        "LD_PRELOAD=/x.so",
        "PATH=/work",
        "HOME=/owners",
        "SHELL=/sandbox/sh",
        "TERM=xterm",
        "BASH_FUNC_ls%%=() { evil; }",
        "LDFLAG=fine",
        "LD_PRELOAD=/y.so",
        "bare",
        "JOB=1",
    ];

    #[test]
    fn what_makes_programs_load_or_run_something_is_taken_out_by_default() {
        let (environment, difference) = escalated(
            &self::environment(&ASKED),
            &EnvironmentRules::default(),
            &owner(),
        );
        let kept = [
            "PATH=/bin",
            "HOME=/owners",
            "TERM=xterm",
            "LDFLAG=fine",
            "bare",
            "JOB=1",
        ];
        assert_eq!(environment, self::environment(&kept));
        assert_eq!(
            difference.removed,
            ["LD_PRELOAD", "SHELL", "BASH_FUNC_ls%%"]
        );
        // HOME is the owner's anyway.
        assert_eq!(difference.reset, ["PATH"]);
        assert!(difference.unset.is_empty() && difference.set.is_empty());
    }

    #[test]
    fn what_chooses_a_language_or_a_terminal_is_a_name_and_no_path() {
        let harmless = [
            "LANG=de_DE.UTF-8",
            "LANGUAGE=de:en",
            "LC_ALL=C.UTF-8",
            "TERM=xterm-256color",
            "TZ=Europe/Berlin",
            "TZ=:UTC",
            "TZ=CET-1CEST,M3.5.0,M10.5.0/3",
            "TZ=",
        ];
        let taken = [
            "LANG=/session",
            "LANGUAGE=../../../session/evil",
            "LC_MESSAGES=%n",
            "TERM=../x",
            "TZ=/session/zone",
            "TZ=:/session/zone",
            "TZ=Europe/../../../../session/zone",
        ];
        let asked = environment(&[&harmless[..], &taken[..]].concat());
        let (left, _) = escalated(&asked, &EnvironmentRules::default(), &owner());
        assert_eq!(left, environment(&harmless));
        // A verdict may keep them nevertheless.
        let rules = EnvironmentRules {
            keep: patterns(&["T*", "L*"]),
            ..EnvironmentRules::default()
        };
        assert_eq!(escalated(&asked, &rules, &owner()).0, asked);
    }

    #[test]
    fn a_verdict_that_keeps_some_keeps_no_others() {
        let asked = [
            "GIT_AUTHOR_NAME=me",
            "GIT_ALLOW_PROTOCOL=ext",
            "PIP_INDEX_URL=x",
            "DBUS_SESSION_BUS_ADDRESS=unixexec:path=/session/evil",
            "SSH_SK_PROVIDER=/session/evil.so",
            "LESSHISTFILE=/etc/x",
            "PATH=/session",
        ];
        let rules = EnvironmentRules {
            keep: patterns(&["GIT_AUTHOR_*", "PAT", "DBUS"]),
            unset: patterns(&["GIT_AUTHOR_EMAIL"]),
            set: vec![("JOB".into(), "1".into())],
        };
        let (left, difference) = escalated(&environment(&asked), &rules, &owner());
        assert_eq!(
            left,
            environment(&["GIT_AUTHOR_NAME=me", "PATH=/bin", "JOB=1"])
        );
        assert_eq!(difference.removed.len(), 5);
    }

    #[test]
    fn a_verdict_keeps_unsets_and_sets_by_name() {
        let rules = EnvironmentRules {
            keep: patterns(&["LD_*", "JOB"]),
            unset: patterns(&["TERM", "b*"]),
            set: vec![("PATH".into(), "/opt".into()), ("NEW".into(), "a=b".into())],
        };
        let (environment, difference) = escalated(&self::environment(&ASKED), &rules, &owner());
        let expected = [
            "LD_PRELOAD=/x.so",
            "HOME=/owners",
            "LDFLAG=fine",
            "LD_PRELOAD=/y.so",
            "JOB=1",
            "PATH=/opt",
            "NEW=a=b",
        ];
        assert_eq!(environment, self::environment(&expected));
        assert_eq!(difference.unset, ["TERM", "bare"]);
        assert_eq!(difference.set, rules.set);
        // What it sets it sets whatever else it says, and what it unsets isn't kept.
        let all = EnvironmentRules {
            keep: vec![NamePattern::all()],
            unset: patterns(&["LD_*", "JOB"]),
            set: vec![("JOB".into(), "2".into())],
        };
        let (environment, difference) = escalated(&self::environment(&ASKED), &all, &owner());
        let expected = [
            "PATH=/work",
            "HOME=/owners",
            "SHELL=/sandbox/sh",
            "TERM=xterm",
            "BASH_FUNC_ls%%=() { evil; }",
            "LDFLAG=fine",
            "bare",
            "JOB=2",
        ];
        assert_eq!(environment, self::environment(&expected));
        assert_eq!(difference.unset, ["LD_PRELOAD"]);
        let all = EnvironmentRules {
            keep: vec![NamePattern::all()],
            ..EnvironmentRules::default()
        };
        let (environment, difference) = escalated(&self::environment(&ASKED), &all, &owner());
        assert_eq!(environment, self::environment(&ASKED));
        assert_eq!(difference, EnvironmentDifference::default());
    }

    #[test]
    fn what_names_a_program_or_code_is_taken_out_whichever_family_it_is_of() {
        for name in [
            "BZR_EDITOR",
            "BZR_PLUGIN_PATH",
            "DARCS_EDITOR",
            "P4EDITOR",
            "P4PORT",
            "SWIFT_EXEC",
            "SWIFT_DRIVER_SWIFT_FRONTEND_EXEC",
            "NVBLAS_CONFIG_FILE",
            "QEMU_LD_PREFIX",
            "QEMU_PLUGIN",
            "STACK_YAML",
            "SKIM_DEFAULT_COMMAND",
        ] {
            let entry = OsString::from(format!("{name}=x"));
            assert!(is_taken_out(name.as_bytes(), &entry), "{name}");
        }
        // Not all that begins alike: this is what deployments are named by.
        assert!(!is_taken_out(b"STACK_NAME", OsStr::new("STACK_NAME=x")));
    }

    #[test]
    fn the_documentation_has_the_same_list() {
        let documentation = include_str!("../../docs/escalated-environment.md");
        let (_, documented) = documentation.split_once("## Taken out").unwrap();
        let documented: HashSet<_> = documented
            .lines()
            .filter_map(|line| line.strip_prefix('|')?.split('|').nth(1))
            .flat_map(|names| names.split('`').skip(1).step_by(2))
            .collect();
        for name in LOOKED_AT {
            let looked_at = documentation.split("## ").nth(2).unwrap();
            assert!(looked_at.contains(&format!("`{name}`")), "{name}");
        }
        let listed: HashSet<_> = TAKEN_OUT.iter().copied().collect();
        assert_eq!(
            listed.len(),
            TAKEN_OUT.len(),
            "a name stands in the list twice"
        );
        let mut different: Vec<_> = documented.symmetric_difference(&listed).collect();
        different.sort();
        assert!(different.is_empty(), "{different:?}");
    }
}

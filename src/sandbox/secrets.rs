//! Places that are known for secrets. SECURITY.md has the same list.

use std::path::{Path, PathBuf};

/// Below a home directory, with what it is for.
pub const IN_HOME: &[(&str, &[&str])] = &[
    ("remote shells", &[".ssh", ".rhosts", ".shosts"]),
    (
        "signatures and passwords",
        &[
            ".gnupg",
            ".password-store",
            ".local/share/keyrings",
            ".local/share/kwalletd",
            ".config/op",
            ".config/Bitwarden CLI",
            ".vault-token",
            ".netrc",
            ".authinfo",
            ".authinfo.gpg",
            ".pgpass",
            ".my.cnf",
            ".mylogin.cnf",
            ".pki",
        ],
    ),
    (
        "clouds",
        &[
            ".aws",
            ".azure",
            ".config/gcloud",
            ".oci",
            ".config/doctl",
            ".config/hcloud",
            ".fly",
            ".config/rclone",
            ".s3cfg",
            ".boto",
            ".terraform.d/credentials.tfrc.json",
            ".terraformrc",
            ".config/heroku",
        ],
    ),
    (
        "git",
        &[
            ".git-credentials",
            ".config/git/credentials",
            ".config/gh",
            ".config/glab-cli",
            ".config/hub",
            ".cache/git",
        ],
    ),
    (
        "packages",
        &[
            ".npmrc",
            ".yarnrc",
            ".yarnrc.yml",
            ".pypirc",
            ".cargo/credentials",
            ".cargo/credentials.toml",
            ".gem/credentials",
            ".bundle/config",
            ".m2/settings.xml",
            ".m2/settings-security.xml",
            ".gradle/gradle.properties",
            ".nuget/NuGet/NuGet.Config",
            ".composer/auth.json",
            ".config/composer/auth.json",
        ],
    ),
    (
        "containers and clusters",
        &[
            ".docker",
            ".config/containers/auth.json",
            ".kube",
            ".config/helm",
            ".helm",
            ".minikube",
        ],
    ),
    (
        "browsers and mail",
        &[
            ".mozilla",
            ".config/google-chrome",
            ".config/chromium",
            ".config/BraveSoftware",
            ".config/microsoft-edge",
            ".thunderbird",
            ".local/share/evolution",
            ".cache/mozilla",
            ".cache/google-chrome",
            ".cache/chromium",
        ],
    ),
    (
        "histories",
        &[
            ".bash_history",
            ".zsh_history",
            ".history",
            ".python_history",
            ".node_repl_history",
            ".psql_history",
            ".mysql_history",
            ".lesshst",
            ".viminfo",
        ],
    ),
    (
        "the gate's own",
        &[".config/execgate", ".local/share/execgate"],
    ),
];

/// Anywhere else, with what it is for.
pub const ELSEWHERE: &[(&str, &[&str])] = &[
    (
        "passwords of the system",
        &[
            "/etc/shadow",
            "/etc/shadow-",
            "/etc/gshadow",
            "/etc/gshadow-",
            "/etc/security/opasswd",
            "/etc/sudoers",
            "/etc/sudoers.d",
            "/etc/krb5.keytab",
        ],
    ),
    (
        "keys of the system",
        &[
            "/etc/ssh",
            "/etc/ssl/private",
            "/etc/letsencrypt",
            "/etc/wireguard",
            "/etc/openvpn",
            "/etc/NetworkManager/system-connections",
            "/etc/ppp",
            "/var/lib/sss/secrets",
        ],
    ),
    (
        "containers and clusters",
        &[
            "/etc/docker",
            "/etc/kubernetes",
            "/etc/rancher",
            "/var/lib/docker",
            "/var/lib/containerd",
            "/var/lib/kubelet",
            "/var/lib/rancher",
        ],
    ),
    (
        "sockets and secrets that last until the machine stops",
        &["/run"],
    ),
    ("temporary files of others", &["/tmp"]),
    ("devices", &["/dev"]),
    ("the gate's own", &["/etc/execgate", "/var/lib/execgate"]),
];

/// What is readable in a place that is hidden.
pub const EXCEPTIONS: &[&str] = &[
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
    "/run/resolvconf/resolv.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/current-system",
];

/// All of these on this machine, whether or not they exist: those in homes for the gate's user, root and
/// whoever has a directory in `/home`.
pub(super) fn hidden(home: Option<&Path>) -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = home.map(Path::to_owned).into_iter().collect();
    homes.push("/root".into());
    if let Ok(entries) = std::fs::read_dir("/home") {
        homes.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    homes.sort_unstable();
    homes.dedup();
    let elsewhere = ELSEWHERE
        .iter()
        .flat_map(|(_, paths)| *paths)
        .map(PathBuf::from);
    let in_homes = homes.iter().flat_map(|home| {
        let paths = IN_HOME.iter().flat_map(|(_, paths)| *paths);
        paths.map(move |path| home.join(path))
    });
    elsewhere.chain(in_homes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_documented() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("SECURITY.md");
        let page = std::fs::read_to_string(page).unwrap();
        // What either has and the other lacks is a fault of one of them.
        let (_, table) = page
            .split_once("\nHidden, whether or not it exists;")
            .unwrap();
        let (table, rest) = table
            .split_once("\n\nOf `/run` these can be read: ")
            .unwrap();
        let stated: Vec<_> = table
            .lines()
            .filter(|line| line.contains('`'))
            .skip(1)
            .collect();
        let rows = |groups: &[(&str, &[&str])], of: &str, before: &str| -> Vec<String> {
            let row = |(what, paths): &(&str, &[&str])| {
                let paths: Vec<_> = paths
                    .iter()
                    .map(|path| format!("`{before}{path}`"))
                    .collect();
                format!("| {of}{what} | {} |", paths.join(", "))
            };
            groups.iter().map(row).collect()
        };
        let listed = [rows(IN_HOME, "homes: ", "~/"), rows(ELSEWHERE, "", "")].concat();
        assert_eq!(stated, listed);
        let (exceptions, _) = rest.split_once(". ").unwrap();
        let listed: Vec<_> = EXCEPTIONS.iter().map(|path| format!("`{path}`")).collect();
        assert_eq!(exceptions, listed.join(", "));
    }
}

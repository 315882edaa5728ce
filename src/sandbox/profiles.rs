//! Named profiles in a TOML file.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::profile::{Profile, Secrets, Temporary, check_path};
use crate::model::NetworkAccess;

/// The most bytes of such a file.
const MOST: u64 = 1 << 20;

/// Why a file of profiles, or one of them, can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfilesError {
    /// The file can't be read.
    #[error("cannot read the profiles of {}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It isn't a file.
    #[error("cannot read the profiles of {}: it isn't a regular file; write them into one", .file.display())]
    NotAFile {
        /// What isn't one.
        file: PathBuf,
    },
    /// It is too long.
    #[error("cannot read the profiles of {}: it has more than {} MiB", .file.display(), MOST >> 20)]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
    /// What it says makes no sense.
    #[error("{}, line {line}: {reason}", .file.display())]
    Wrong {
        /// The file.
        file: PathBuf,
        /// Where, from 1 on.
        line: usize,
        /// Why.
        reason: String,
    },
    /// It has no such profile.
    #[error("{} has no profile `{name}`; it has {known}", .file.display())]
    Unknown {
        /// The file.
        file: PathBuf,
        /// The name that was looked for.
        name: String,
        /// Those that it has.
        known: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    read: Option<Vec<Spanned<PathBuf>>>,
    write: Option<Vec<Spanned<PathBuf>>>,
    hide: Option<Vec<Spanned<PathBuf>>>,
    secrets: Option<Secrets>,
    network: Option<Network>,
    temporary: Option<Temporary>,
}

/// A network, as it is written.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Network {
    On,
    Off,
}

/// The profiles of one file.
#[derive(Debug)]
pub struct Profiles {
    file: PathBuf,
    profiles: BTreeMap<String, Profile>,
}

impl Profiles {
    /// Reads them. What one leaves out is as in the default profile.
    ///
    /// # Errors
    /// What is no regular file, or has more than 1 MiB; what isn't TOML, keys and values that a profile doesn't have, paths that are none; with the line.
    pub fn read(file: &Path) -> Result<Self, ProfilesError> {
        let read_error = |source| ProfilesError::Read {
            file: file.to_owned(),
            source,
        };
        // Asked before it is opened: opening a pipe would wait for its writer.
        if !std::fs::metadata(file).map_err(read_error)?.is_file() {
            return Err(ProfilesError::NotAFile {
                file: file.to_owned(),
            });
        }
        let mut bytes = Vec::new();
        std::fs::File::open(file)
            .and_then(|open| open.take(MOST + 1).read_to_end(&mut bytes))
            .map_err(read_error)?;
        if bytes.len() as u64 > MOST {
            return Err(ProfilesError::TooLarge {
                file: file.to_owned(),
            });
        }
        let text = String::from_utf8(bytes);
        let text = text.map_err(|error| read_error(io::Error::other(error)))?;
        Self::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, ProfilesError> {
        let wrong = |at: usize, reason: String| ProfilesError::Wrong {
            file: file.to_owned(),
            line: text
                .get(..at)
                .map_or(1, |before| before.matches('\n').count() + 1),
            reason,
        };
        let tables: BTreeMap<String, Written> = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            wrong(at, error.message().to_owned())
        })?;
        let mut profiles = BTreeMap::new();
        for (name, table) in tables {
            for path in [&table.read, &table.write, &table.hide]
                .into_iter()
                .flatten()
                .flatten()
            {
                check_path(path.get_ref())
                    .map_err(|error| wrong(path.span().start, error.to_string()))?;
            }
            profiles.insert(name.clone(), table.profile(name));
        }
        Ok(Self {
            file: file.to_owned(),
            profiles,
        })
    }

    /// The profile of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, name: &str) -> Result<&Profile, ProfilesError> {
        self.profiles
            .get(name)
            .ok_or_else(|| ProfilesError::Unknown {
                file: self.file.clone(),
                name: name.to_owned(),
                known: match &self.profiles.keys().map(String::as_str).collect::<Vec<_>>()[..] {
                    [] => "none".to_owned(),
                    names => names.join(", "),
                },
            })
    }
}

impl Written {
    fn profile(self, name: String) -> Profile {
        let default = Profile::default();
        let paths = |list: Option<Vec<Spanned<PathBuf>>>, default: Vec<PathBuf>| match list {
            Some(list) => list.into_iter().map(Spanned::into_inner).collect(),
            None => default,
        };
        Profile {
            name,
            read: paths(self.read, default.read),
            write: paths(self.write, default.write),
            hide: paths(self.hide, default.hide),
            secrets: self.secrets.unwrap_or(default.secrets),
            network: match self.network {
                Some(Network::On) => NetworkAccess::Allowed,
                Some(Network::Off) => NetworkAccess::Denied,
                None => default.network,
            },
            temporary: self.temporary.unwrap_or(default.temporary),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Profiles, ProfilesError> {
        Profiles::parse(Path::new("p.toml"), text)
    }

    #[test]
    fn what_a_profile_leaves_out_is_the_default() {
        let profiles =
            parse("[build]\nwrite = [\".\", \"~/.cache/x\"]\nnetwork = \"on\"\n[none]\n").unwrap();
        let build = profiles.get("build").unwrap();
        assert_eq!(build.write, [Path::new("."), Path::new("~/.cache/x")]);
        assert_eq!(
            (build.network, &build.read),
            (NetworkAccess::Allowed, &Profile::default().read)
        );
        assert_eq!(profiles.get("none").unwrap().network, NetworkAccess::Denied);
        let error = profiles.get("buidl").unwrap_err().to_string();
        assert_eq!(error, "p.toml has no profile `buidl`; it has build, none");
    }

    #[test]
    fn what_is_not_a_file_or_too_large_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let error = |path: &Path| Profiles::read(path).unwrap_err();
        let pipe = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [&pipe, directory.path(), Path::new("/dev/zero")] {
            assert!(matches!(error(path), ProfilesError::NotAFile { .. }));
        }
        let file = directory.path().join("p.toml");
        std::fs::write(&file, vec![b'#'; (1 << 20) + 1]).unwrap();
        assert!(matches!(error(&file), ProfilesError::TooLarge { .. }));
        std::fs::write(&file, b"[a]\n# \xff\n").unwrap();
        assert!(matches!(error(&file), ProfilesError::Read { .. }));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let cases = [
            (
                "[a]\nread = [\"/usr\"]\nwrit = []\n",
                "p.toml, line 3: unknown field `writ`",
            ),
            (
                "[a]\n\nnetwork = \"maybe\"\n",
                "p.toml, line 3: unknown variant `maybe`, expected `on` or `off`",
            ),
            (
                "[a]\nread = [\n  \"/usr\",\n  \"usr\",\n]\n",
                "p.toml, line 4: `usr` is no path for a profile",
            ),
            (
                "[a]\nhide = [\"/x/../y\"]\n",
                "p.toml, line 2: `/x/../y` has `..` in it",
            ),
            (
                "[a]\nread = \"/usr\"\n",
                "p.toml, line 2: invalid type: string \"/usr\", expected a sequence",
            ),
            ("[a]\n[a]\n", "p.toml, line 2: duplicate key"),
            ("write = [\"/\"]\n", "p.toml, line 1: invalid type: "),
            ("[a\n", "p.toml, line 1: "),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}

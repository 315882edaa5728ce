//! Named profiles in a TOML file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::profile::{Profile, Secrets, Temporary, check_path};
use crate::model::NetworkAccess;

/// The most bytes of such a file.
const MOST: usize = 1 << 20;

/// Why a file of profiles, or one of them, can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfilesError {
    /// The file can't be read.
    #[error("cannot read the profiles of {}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
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
    /// What isn't TOML, keys and values that a profile doesn't have, paths that are none; with the line.
    pub fn read(file: &Path) -> Result<Self, ProfilesError> {
        let text = std::fs::read_to_string(file).map_err(|source| ProfilesError::Read {
            file: file.to_owned(),
            source,
        })?;
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
        if text.len() > MOST {
            return Err(wrong(0, "it is too long: 1 MiB is the most".to_owned()));
        }
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

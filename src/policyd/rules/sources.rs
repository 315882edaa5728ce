//! Which files rules are in.

use std::path::{Path, PathBuf};

use super::error::RulesError;

/// How names of files with rules end, in a directory.
const ENDINGS: [&str; 2] = [".rules", ".rules.star"];

/// The files that paths lead to: a file is itself, and a directory those of its files whose names end so and
/// don't begin with a dot, in the order of their names.
pub(crate) fn files<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<PathBuf>, RulesError> {
    let mut files = Vec::new();
    for path in paths {
        let path = path.as_ref();
        if !path.is_dir() {
            files.push(path.to_owned());
            continue;
        }
        let read_error = |source| RulesError::Read {
            path: path.to_owned(),
            source,
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(read_error)? {
            let name = entry.map_err(read_error)?.file_name();
            let text = name.to_string_lossy();
            if ENDINGS.iter().any(|ending| text.ends_with(ending)) && !text.starts_with('.') {
                names.push(name);
            }
        }
        if names.is_empty() {
            return Err(RulesError::NoFiles {
                path: path.to_owned(),
            });
        }
        names.sort_unstable();
        files.extend(names.into_iter().map(|name| path.join(name)));
    }
    Ok(files)
}

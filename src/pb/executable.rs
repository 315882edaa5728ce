//! Executables as the contract has them.

use std::os::unix::ffi::OsStrExt;

use prost::bytes::Bytes;

use super::v1;
use crate::model::{
    EnvironmentDifference, Executable, ExecutableFile, FileVersion, Interpreter, Protection,
};

/// What is said of a program.
#[must_use]
pub fn executable_info(executable: &Executable) -> v1::ExecutableInfo {
    match executable {
        Executable::Found(file) => found(file),
        Executable::NotThere => v1::ExecutableInfo {
            missing: "No such file or directory".to_owned(),
            ..v1::ExecutableInfo::default()
        },
        Executable::Unknown(reason) => v1::ExecutableInfo {
            missing: reason.clone(),
            ..v1::ExecutableInfo::default()
        },
    }
}

fn found(file: &ExecutableFile) -> v1::ExecutableInfo {
    let writable = match file.protection() {
        Protection::Writable(path) => os(path.as_os_str()),
        Protection::Protected | Protection::NoBoundary => Bytes::new(),
    };
    v1::ExecutableInfo {
        missing: String::new(),
        real_path: os(file.path.as_os_str()),
        file_version: Some(file_version(file.version)),
        owner_user_id: file.owner,
        owner_group_id: file.group,
        mode: file.mode,
        protection: protection(file.protection()).into(),
        writable_path: writable,
        sha256: file
            .sha256
            .map_or_else(Bytes::new, |digest| Bytes::copy_from_slice(&digest)),
        interpreter: file
            .interpreter()
            .map(|interpreter| Box::new(interpreter_info(interpreter))),
    }
}

fn interpreter_info(interpreter: &Interpreter) -> v1::Interpreter {
    v1::Interpreter {
        name: os(&interpreter.name),
        argument: interpreter.argument.as_deref().map_or_else(Bytes::new, os),
        executable: Some(Box::new(executable_info(&interpreter.executable))),
    }
}

/// Whether a session can write something.
#[must_use]
pub fn protection(protection: &Protection) -> v1::Protection {
    match protection {
        Protection::Protected => v1::Protection::Protected,
        Protection::Writable(_) => v1::Protection::Writable,
        Protection::NoBoundary => v1::Protection::NoBoundary,
    }
}

fn file_version(version: FileVersion) -> v1::FileVersion {
    let time = |(seconds, nanoseconds): (i64, u32)| prost_types::Timestamp {
        seconds,
        nanos: i32::try_from(nanoseconds).unwrap_or(0),
    };
    v1::FileVersion {
        device_major: version.device.0,
        device_minor: version.device.1,
        inode: version.inode,
        size: version.size,
        modification_time: Some(time(version.modified)),
        status_change_time: Some(time(version.changed)),
    }
}

pub(super) fn environment_difference(
    difference: EnvironmentDifference,
) -> v1::EnvironmentDifference {
    let names = |names: Vec<std::ffi::OsString>| names.iter().map(|name| os(name)).collect();
    v1::EnvironmentDifference {
        removed_names: names(difference.removed),
        reset_names: names(difference.reset),
        unset_names: names(difference.unset),
        set_variables: difference
            .set
            .iter()
            .map(|(name, value)| v1::EnvironmentVariable {
                name: os(name),
                value: os(value),
                redaction: v1::Redaction::None.into(),
            })
            .collect(),
    }
}

fn os(text: &std::ffi::OsStr) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::ExecutableContent;

    #[test]
    fn a_script_says_what_executes_it_and_whose_fault_it_is_that_it_is_writable() {
        let file = |path: &str, own_protection, content| ExecutableFile {
            path: path.into(),
            version: FileVersion {
                device: (8, 1),
                inode: 5,
                size: 7,
                modified: (-1, 2),
                changed: (3, 4),
            },
            owner: 1,
            group: 2,
            mode: 0o4755,
            own_protection,
            sha256: Some([7; 32]),
            content,
        };
        let writable = Protection::Writable("/sandbox".into());
        let interpreter = file("/sandbox/sh", writable, ExecutableContent::Binary);
        let content = ExecutableContent::Script(Interpreter {
            name: "../sandbox/sh".into(),
            argument: Some("-e".into()),
            executable: Executable::Found(Arc::new(interpreter)),
        });
        let script = file("/usr/bin/script", Protection::Protected, content);
        let info = executable_info(&Executable::Found(Arc::new(script)));
        assert_eq!(info.protection(), v1::Protection::Writable);
        assert_eq!(info.writable_path, &b"/sandbox"[..]);
        assert_eq!(info.sha256, &[7; 32][..]);
        let interpreter = info.interpreter.expect("an interpreter");
        assert_eq!(interpreter.argument, &b"-e"[..]);
        let executable = interpreter.executable.expect("a file");
        assert_eq!(executable.real_path, &b"/sandbox/sh"[..]);
        assert_eq!(executable.mode, 0o4755);

        let info = executable_info(&Executable::Unknown("gone".to_owned()));
        assert_eq!(info.missing, "gone");
        assert_eq!(info.protection(), v1::Protection::Unspecified);
    }
}

use std::io;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use crate::model::Protection;
use crate::sys::place::{Place, Rights, Status};

/// Where the processes of a session can write, as far as its sandbox lets them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WritablePlaces {
    /// Wherever its user may.
    #[default]
    Everywhere,
    /// In these files and directories, with all below them, and nowhere else: certain, whoever the user is.
    Only(Vec<PathBuf>),
}

/// Who may be able to write files: the processes of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    users: Vec<u32>,
    groups: Vec<u32>,
    overrides_permissions: bool,
    places: WritablePlaces,
}

/// Filesystems of which the kernel itself keeps owner and mode, by their numbers in `statfs(2)`. Those that
/// another program or host serves can say what they like, and change it.
const OF_THE_KERNEL: [u64; 13] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0xf2f5_2010, // F2FS
    0x794c_7630, // overlay
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x7371_7368, // SquashFS
    0xe0f5_e1e2, // EROFS
    0x9660,      // ISO 9660
    0x3153_464a, // JFS
];

const PROC: u64 = 0x9fa0;

/// The most entries of a directory that are looked through.
const MOST_ENTRIES: usize = 20_000;

const STICKY: u32 = 0o1000;

impl Writer {
    /// Those that run as the user with these rights, confined to these places.
    #[must_use]
    pub fn new(rights: &Rights, places: WritablePlaces) -> Self {
        let places = match places {
            WritablePlaces::Everywhere => places,
            // They are compared to paths without links.
            WritablePlaces::Only(places) => WritablePlaces::Only(
                places
                    .into_iter()
                    .map(|place| place.canonicalize().unwrap_or(place))
                    .collect(),
            ),
        };
        Self {
            users: vec![rights.user],
            groups: rights.groups.clone(),
            overrides_permissions: rights.overrides_permissions,
            places,
        }
    }

    /// The same, with a process that runs as this user and group.
    #[must_use]
    pub fn with(mut self, user: u32, group: u32) -> Self {
        self.overrides_permissions |= user == 0;
        if !self.users.contains(&user) {
            self.users.push(user);
        }
        if !self.groups.contains(&group) {
            self.groups.push(group);
        }
        self
    }

    /// Whether nothing keeps them from anything.
    pub(super) fn has_no_boundary(&self) -> bool {
        self.overrides_permissions && self.places == WritablePlaces::Everywhere
    }

    fn may_reach(&self, path: &Path, status: &Status) -> bool {
        match &self.places {
            WritablePlaces::Everywhere => true,
            WritablePlaces::Only(places) => {
                // A file may have another name, in such a place.
                has_names_elsewhere(path, status)
                    || places.iter().any(|place| path.starts_with(place))
            }
        }
    }

    fn permissions_let(&self, place: &Place, status: &Status) -> io::Result<bool> {
        Ok(self.overrides_permissions
            // The owner can change the mode.
            || self.users.contains(&status.owner)
            || status.mode & 0o002 != 0
            || (status.mode & 0o020 != 0
                // With a list these bits are the most that any of its entries gives.
                && (self.groups.contains(&status.group) || place.has_access_list()?)))
    }
}

/// Judges files and directories one after the other, until the first that can be written.
pub(super) struct Judge<'a> {
    writer: &'a Writer,
    /// The last device, and whether its filesystem's word counts.
    device: Option<((u32, u32), bool)>,
    writable: Option<PathBuf>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(writer: &'a Writer) -> Self {
        Self {
            writer,
            device: None,
            writable: None,
        }
    }

    /// Judges a file or directory itself.
    pub(super) fn itself(&mut self, path: &Path, place: &Place, status: &Status) {
        if self.may_write(path, place, status) {
            self.found(path);
        }
    }

    /// Judges whether what is in a directory under a name can be replaced.
    pub(super) fn entry(
        &mut self,
        path: &Path,
        (directory, status): (&Place, &Status),
        entry: &Status,
    ) {
        let users = &self.writer.users;
        // Only who owns the one or the other may then remove it (`unlink(2)`, EPERM).
        let is_kept = status.mode & STICKY != 0
            && !self.writer.overrides_permissions
            && !users.contains(&status.owner)
            && !users.contains(&entry.owner);
        if self.may_write(path, directory, status) && !(is_kept && self.is_of_the_kernel()) {
            self.found(path);
        }
    }

    pub(super) fn protection(self) -> Protection {
        match self.writable {
            _ if self.writer.has_no_boundary() => Protection::NoBoundary,
            Some(path) => Protection::Writable(path),
            None => Protection::Protected,
        }
    }

    fn found(&mut self, path: &Path) {
        self.writable.get_or_insert_with(|| path.to_owned());
    }

    /// Whether the filesystem that was last looked at is the kernel's own.
    fn is_of_the_kernel(&self) -> bool {
        self.device.is_some_and(|(_, counts)| counts)
    }

    fn may_write(&mut self, path: &Path, place: &Place, status: &Status) -> bool {
        if self.writable.is_some() || self.writer.has_no_boundary() {
            return false;
        }
        if self
            .device
            .is_none_or(|(device, _)| device != status.device)
        {
            let counts = place
                .filesystem()
                .is_ok_and(|number| OF_THE_KERNEL.contains(&number));
            self.device = Some((status.device, counts));
        }
        !self.is_of_the_kernel()
            || (self.writer.may_reach(path, status)
                && self.writer.permissions_let(place, status).unwrap_or(true))
    }
}

/// Whether a file has, or may have, names in other directories than this one's.
fn has_names_elsewhere(path: &Path, status: &Status) -> bool {
    if !status.is_file() || status.links == 1 {
        return false;
    }
    let here = path
        .parent()
        .and_then(|directory| std::fs::read_dir(directory).ok());
    let names = here.into_iter().flatten().take(MOST_ENTRIES).flatten();
    let own = names.filter(|entry| entry.ino() == status.inode).count();
    u32::try_from(own).is_ok_and(|own| own < status.links)
}

/// Whether a link is one of `/proc`'s, which may lead where no name does.
pub(super) fn is_of_proc(link: &Place) -> io::Result<bool> {
    Ok(link.filesystem()? == PROC)
}

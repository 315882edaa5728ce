//! Attacks on what is hidden.

use crate::attack::Held::{No, Yes};
use crate::attack::{Attack, Control, Who};

pub(crate) const ATTACKS: &[Attack] = &[
    Attack::new("read a hidden file", "grep secret-of-mine ~/.ssh/id"),
    Attack::new("read it by a symbolic link", "ln -s ~/.ssh link && grep secret-of-mine link/id"),
    Attack::new("read it by a hard link", "ln ~/.ssh/id id && grep secret-of-mine id"),
    Attack::new("read it from its directory", "cd ~/.ssh && grep secret-of-mine id"),
    Attack::new("read it where its directory has been moved to", "mv ~/.aws mine && grep secret-of-mine mine/credentials"),
    Attack::new("read it by `/proc/self/root`", "grep secret-of-mine /proc/self/root$HOME/.ssh/id"),
    Attack::new("read it by `/proc/self/cwd`", "grep secret-of-mine /proc/self/cwd/../../home/.ssh/id"),
    Attack::new("open it as a place, and the place for reading", "python3 $PROGRAMS/files.py place"),
    Attack::new("open its directory as a place, and the file in that", "python3 $PROGRAMS/files.py place_of_directory"),
    Attack::new("open it by its handle", "python3 $PROGRAMS/files.py handle").by(Who::Root),
    Attack::new(
        "bind its directory elsewhere, in a namespace of one's own",
        "unshare -rm true || test $? = 1 && unshare -rm true 2>/dev/null || exit 77
         mkdir m; unshare -rm sh -c 'mount --bind ~/.ssh m && grep secret-of-mine m/id'",
    ),
    Attack::new(
        "unmount what hides it, in a namespace of one's own",
        "unshare -rm true || exit 77; unshare -rm sh -c 'umount -l ~/.ssh; grep secret-of-mine ~/.ssh/id'",
    ),
    Attack::new("execute a hidden program", "~/.ssh/program | grep secret-of-mine"),
    Attack::new("have the dynamic loader map a hidden file", "python3 $PROGRAMS/files.py load"),
    Attack::new("read the system's passwords", "grep : /etc/shadow").by(Who::Root),
    Attack::new("read the gate's token", "grep secret-of-mine $OUTSIDE/token"),
    Attack::new("read the gate's journal", "cat $OUTSIDE/journal/* | grep ."),
    Attack::new("change the gate's journal", "for file in $OUTSIDE/journal/*; do : >>$file && exit; done; false"),
    Attack::new("find the gate's own variables in the environment", "env | grep ^EXECGATE_POLICY_").proved_by(Control::NoGate),
    Attack::new("list a hidden directory", "ls ~/.ssh | grep id").held(
        No,
        Yes,
        "Landlock gives the right to list for a tree only, and what isn't hidden in the home has to be found",
    ),
    Attack::new("learn a hidden file's size and times", "test -s ~/.ssh/id").held(
        No,
        Yes,
        "Landlock has no right for `stat`",
    ),
    Attack::new(
        "read a hidden file that came into being during the session",
        "install -D -m 644 /etc/hostname ~/.kube/config && grep . ~/.kube/config",
    )
    .held(
        Yes,
        No,
        "bubblewrap has nothing to put something over: hide a directory that is there",
    ),
    Attack::new("read a hidden file by a link that was there before", "grep secret-of-mine $OUTSIDE/other").held(
        No,
        No,
        "what is hidden is a name, and another name of the same file is its own",
    ),
];

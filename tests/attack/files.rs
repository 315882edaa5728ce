//! Attacks that write outside, or make programs that are more than their user.

use crate::attack::Held::{No, Yes};
use crate::attack::{Attack, Who};

const OWNERS: &str = "Landlock has no right for it; root under Landlock can do it to any file";

/// All of these leave things as they were where they succeed, but for what the next doesn't look at.
pub(crate) const ATTACKS: &[Attack] = &[
    Attack::new("make a file outside", "echo x >$OUTSIDE/new && rm $OUTSIDE/new"),
    Attack::new("write a file outside", "echo there >$OUTSIDE/file"),
    Attack::new("write it by a symbolic link", "ln -s $OUTSIDE/file link && echo there >link"),
    Attack::new("write it by a hard link", "ln $OUTSIDE/file mine && echo there >mine"),
    Attack::new("write it by `/proc/self/root`", "echo there >/proc/self/root$OUTSIDE/file"),
    Attack::new("write it by `..`", "echo there >../../outside/file"),
    Attack::new("write it from its directory", "cd $OUTSIDE && echo there >file"),
    Attack::new("empty it", "python3 $PROGRAMS/files.py truncate"),
    Attack::new("open it for reading, and that for writing", "python3 $PROGRAMS/files.py reopen_for_writing"),
    Attack::new("remove it", "rm -f $OUTSIDE/file; ! test -e $OUTSIDE/file && echo there >$OUTSIDE/file"),
    Attack::new("move it in", "mv $OUTSIDE/file mine && mv mine $OUTSIDE/file"),
    Attack::new("move a file out", "echo x >mine && mv mine $OUTSIDE/mine && rm $OUTSIDE/mine"),
    Attack::new("link a file out", "echo x >mine && ln mine $OUTSIDE/mine && rm $OUTSIDE/mine"),
    Attack::new("exchange a file with one outside", "python3 $PROGRAMS/files.py exchange"),
    Attack::new("give a file without a name one outside", "python3 $PROGRAMS/files.py unnamed"),
    Attack::new("make a file without a name outside", "python3 $PROGRAMS/files.py unnamed_outside"),
    Attack::new("make a directory outside", "mkdir $OUTSIDE/new && rmdir $OUTSIDE/new"),
    Attack::new("make a link outside", "ln -s x $OUTSIDE/new && rm $OUTSIDE/new"),
    Attack::new("make a FIFO outside", "mkfifo $OUTSIDE/new && rm $OUTSIDE/new"),
    Attack::new(
        "have the kernel write a core dump outside",
        "ulimit -c unlimited 2>/dev/null
         case $(cat /proc/sys/kernel/core_pattern) in [!/\\|]*) ;; *) exit 77 ;; esac
         test \"$(ulimit -c)\" = unlimited || exit 77
         cd $OUTSIDE && sh -c 'kill -ABRT $$'; rm core*",
    ),
    Attack::new(
        // As `do_coredump` of Linux does, by the rights of the process that dies; for machines whose limits allow no dump.
        "make a file outside as the kernel makes a core dump",
        "cd $OUTSIDE && python3 $PROGRAMS/files.py core_dump",
    ),
    Attack::new(
        "name a program that the kernel starts for core dumps",
        "pattern=$(cat /proc/sys/kernel/core_pattern) && echo \"$pattern\" >/proc/sys/kernel/core_pattern",
    )
    .by(Who::Root),
    Attack::new(
        "change a setting of the kernel",
        "file=/proc/irq/default_smp_affinity; value=$(cat $file) || exit 77; echo \"$value\" >$file",
    )
    .by(Who::Root),
    Attack::new(
        "name a program that the kernel starts for modules",
        "name=$(cat /proc/sys/kernel/modprobe) || exit 77; echo \"$name\" >/proc/sys/kernel/modprobe",
    )
    .by(Who::Root),
    Attack::new("write to the audit's store", "for file in $DATA/*; do : >>$file && exit; done; false").by(Who::Root),
    Attack::new("make a device", "mknod null c 1 3").by(Who::Root),
    Attack::new("make a program that is its owner's when others execute it", "cp /bin/true mine && chmod u+s mine && test -u mine"),
    Attack::new("make a program that has a capability", "python3 $PROGRAMS/files.py capability").by(Who::Root),
    Attack::new("execute a program that makes its user root", "$BUILT/identity").by(Who::Ordinary),
    Attack::new("execute it by a hard link", "ln $BUILT/identity mine || exit 77; ./mine").by(Who::Ordinary),
    Attack::new("link a program that makes its user root into one's own directory", "ln $BUILT/identity mine && test -u mine").by(Who::Root),
    Attack::new("change the mode of a file outside", "chmod 644 $OUTSIDE/file").held(No, Yes, OWNERS),
    Attack::new("change the times of a file outside", "touch -c -d @0 $OUTSIDE/file").held(No, Yes, OWNERS),
    Attack::new("change the owner of a file outside", "chown $UID $OUTSIDE/file").held(No, Yes, OWNERS),
    Attack::new("change an attribute of a file outside", "python3 $PROGRAMS/files.py attribute").held(No, Yes, OWNERS),
];

//! Attacks on the way to a verdict: commands that nobody asks about, and requests that say what isn't so.

use crate::attack::Held::{No, Yes};
use crate::attack::{Attack, Control};

pub(crate) const ATTACKS: &[Attack] = &[
    Attack::new("execute without asking", "unset EXEC_WRAPPER BASH_EXEC_WRAPPER; /bin/grep secret-of-mine ~/.ssh/id"),
    Attack::new(
        "ask with another wrapper",
        r#"printf '#!/bin/sh\nfile=$1; shift 2; exec "$file" "$@"\n' >mine; chmod +x mine
           export EXEC_WRAPPER=$PWD/mine BASH_EXEC_WRAPPER=$PWD/mine; "$BASH" -c '/bin/grep secret-of-mine ~/.ssh/id || exit 1'"#,
    ),
    Attack::new("execute by another shell", "/bin/sh -c 'grep secret-of-mine ~/.ssh/id'"),
    Attack::new("execute by the dynamic loader", "$(ls /lib64/ld-linux*.so.* /lib/ld-linux*.so.* 2>/dev/null | head -1) /bin/grep secret-of-mine ~/.ssh/id"),
    Attack::new("begin a session of one's own", "$EXECGATE exec --sandbox none --no-login --verdict-timeout 2s --policy $SERVICE --shell $BASH -- 'grep secret-of-mine ~/.ssh/id'"),
    Attack::new(
        "approve one's own request",
        "/usr/bin/id >said 2>said.too & export EXECGATE_SERVICE=$SERVICE EXECGATE_SERVICE_TOKEN_FILE=$OPERATOR
         for i in 1 2 3 4 5 6 7 8 9 10; do
             $EXECGATE approvals list --output json >list || break
             for name in $(grep -o '\"approval\":\"[^\"]*\"' list | cut -d'\"' -f 4); do $EXECGATE approvals approve $name && break 2; done
             sleep 0.3
         done
         test -s list || { kill %1; exit 1; }
         wait; grep uid= said",
    ),
    by_loose("send what goes with an escalation after a denial", "python3 $PROGRAMS/requests.py after_denial"),
    by_loose("escalate a program in the name of another", "python3 $PROGRAMS/requests.py another_name"),
    by_loose("escalate in another directory than was judged", "python3 $PROGRAMS/requests.py another_directory"),
    by_loose("escalate in a directory named by way of another", "python3 $PROGRAMS/requests.py directory_up"),
    by_loose("escalate in a directory named by a link", "python3 $PROGRAMS/requests.py linked_directory"),
    by_loose("escalate a program of one's own by a known name", "mv evil uname; PATH=$PWD:$PATH uname | grep secret-of-mine"),
    by_loose("escalate it by its path", "mv evil uname; python3 $PROGRAMS/requests.py own_program"),
    by_loose("escalate it by a path that begins as a known one", "mv evil uname; python3 $PROGRAMS/requests.py own_program_around"),
    by_loose("escalate it by a name without a directory", "mv evil uname; python3 $PROGRAMS/requests.py own_program_here"),
    Attack::new("hand a hidden file to an escalated command as a place", "python3 $PROGRAMS/requests.py place").proved_by(Control::NoGate),
    Attack::new("use up the gate's descriptors by requests", "python3 $PROGRAMS/flood.py handshakes").proved_by(Control::NoGate),
    Attack::new("use up the gate's descriptors by what is no request", "python3 $PROGRAMS/flood.py others").proved_by(Control::NoGate),
    Attack::new(
        "have an escalated command write what was opened for reading",
        "before=$(stat -c %y $OUTSIDE/file); echo there | tee /dev/stdout 1<$OUTSIDE/file
         test \"$before\" != \"$(stat -c %y $OUTSIDE/file)\"",
    )
    .proved_by(Control::NoGate)
    .held(
        No,
        Yes,
        "a command that opens `/dev/stdout` or `/dev/fd/N` anew does so with its own rights: escalate none that is told to; bubblewrap's mounts are read-only themselves",
    ),
];

const fn by_loose(name: &'static str, program: &'static str) -> Attack {
    Attack::new(name, program).proved_by(Control::LooseRules)
}

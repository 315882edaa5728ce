//! Attacks on processes outside: the gate, what it has escalated, and others of its user.

use crate::attack::Held::{No, NoUnlessRoot, Yes};
use crate::attack::{Attack, Who};

const SEEN: &str =
    "Landlock has no process namespace, and `/proc` says that much of each process to everybody";

pub(crate) const ATTACKS: &[Attack] = &[
    of_processes("read the gate's environment", "python3 $PROGRAMS/processes.py gates_environment"),
    of_processes("read the environment of a process outside", "python3 $PROGRAMS/processes.py environment"),
    of_processes("read the gate's memory", "python3 $PROGRAMS/processes.py gates_memory"),
    of_processes("read the memory of a process outside", "python3 $PROGRAMS/processes.py memory"),
    of_processes("read the gate's memory map", "python3 $PROGRAMS/processes.py maps"),
    of_processes("see what the gate has open", "python3 $PROGRAMS/processes.py descriptors"),
    of_processes("open what a process outside has open", "python3 $PROGRAMS/processes.py descriptor"),
    of_processes("read in the directory of a process outside", "python3 $PROGRAMS/processes.py directory"),
    of_processes("read below the gate's root directory", "python3 $PROGRAMS/processes.py root"),
    of_processes("read by way of the gate's working directory", "python3 $PROGRAMS/processes.py gates_directory"),
    of_processes("trace a process outside", "python3 $PROGRAMS/processes.py trace"),
    of_processes("trace the session's supervisor", "python3 $PROGRAMS/processes.py trace_gate"),
    of_processes("trace an escalated command", "SHELL_HERE=$BASH python3 $PROGRAMS/processes.py trace_escalated"),
    of_processes("read below an escalated command's root directory", "SHELL_HERE=$BASH python3 $PROGRAMS/processes.py escalated_directory"),
    of_processes("write to an escalated command's standard input", "SHELL_HERE=$BASH python3 $PROGRAMS/processes.py inject"),
    of_processes("signal an escalated command", "SHELL_HERE=$BASH python3 $PROGRAMS/processes.py signal_escalated"),
    of_processes("copy from a process's memory (`process_vm_readv`)", "python3 $PROGRAMS/processes.py read_memory"),
    of_processes("copy into a process's memory (`process_vm_writev`)", "python3 $PROGRAMS/processes.py write_memory"),
    of_processes("take a descriptor from a process (`pidfd_getfd`)", "python3 $PROGRAMS/processes.py take_descriptor"),
    of_processes("signal a process outside", "python3 $PROGRAMS/processes.py signal"),
    of_processes("signal the gate", "python3 $PROGRAMS/processes.py signal_gate"),
    of_processes("signal by a process's descriptor", "python3 $PROGRAMS/processes.py signal_by_descriptor"),
    of_processes("signal a process group outside", "python3 $PROGRAMS/processes.py signal_group"),
    of_processes("signal a thread", "python3 $PROGRAMS/processes.py signal_thread"),
    of_processes("signal with a value", "python3 $PROGRAMS/processes.py signal_with_a_value"),
    of_processes("have a pipe signal a process outside (`F_SETOWN`)", "python3 $PROGRAMS/processes.py signal_by_ownership"),
    of_processes("stop the session's supervisor", "python3 $PROGRAMS/processes.py pause_supervisor"),
    of_processes("change the priority of a process outside", "python3 $PROGRAMS/processes.py priority"),
    of_processes("change the limits of a process outside", "python3 $PROGRAMS/processes.py limit"),
    of_processes("have a process outside killed first when memory is short", "python3 $PROGRAMS/processes.py oom"),
    of_processes("change the processors of a process outside", "python3 $PROGRAMS/processes.py processors")
        .held(NoUnlessRoot, Yes, "the filter can't tell a process's own threads from others, and build tools set processors of threads"),
    of_processes("read the command line of a process outside", "python3 $PROGRAMS/processes.py command_line").held(No, Yes, SEEN),
];

const fn of_processes(name: &'static str, program: &'static str) -> Attack {
    Attack::new(name, program).by(Who::Anybody)
}

//! Attacks between a question and its answer: what was judged, and what has its name by then.

use crate::attack::{Attack, Control, Success};

/// Each makes `d/tool`, which says "good", asks for it, and changes something while nobody has answered.
pub(crate) const ATTACKS: &[Attack] = &[
    swap("edit a program", "cat evil >d/tool"),
    swap("edit it by another name", "cat evil >other"),
    swap("replace it", "mv evil d/tool"),
    swap(
        "exchange it with another",
        "python3 $PROGRAMS/swaps.py exchange",
    ),
    swap(
        "have its name be a link to another",
        "ln -sf $PWD/evil d/tool",
    ),
    swap(
        "have its directory be another",
        "mv d old; mkdir d; cp evil d/tool",
    ),
    swap(
        "have its directory be a link to another",
        "mv d old; mkdir e; cp evil e/tool; ln -s e d",
    ),
    swap(
        "have a link to its directory lead elsewhere",
        "mkdir e; cp evil e/tool; ln -sfn e link",
    ),
    swap("replace a script's interpreter", "mv evil interpreter"),
    swap("edit a script's interpreter", "cat evil >interpreter"),
    swap(
        "write it by a mapping, which leaves no trace",
        ": >write; while ! test -e written; do sleep 0.02; done",
    ),
    swap(
        "have it be a program in memory",
        "python3 $PROGRAMS/swaps.py memory & while ! test -e d/memory; do sleep 0.02; done; mv d/memory d/tool",
    ),
];

const fn swap(name: &'static str, program: &'static str) -> Attack {
    Attack::new(name, program)
        .proved_by(Control::Run)
        .that(Success::Swap)
}

/// The whole script: `program` is what is done between question and answer.
pub(crate) fn script(name: &str, program: &str) -> String {
    let (first, tool) = match name {
        name if name.contains("interpreter") => (
            "cp /bin/dash interpreter; printf \"#!$PWD/interpreter\\necho good\\n\" >d/tool",
            "d/tool",
        ),
        name if name.starts_with("have a link") => ("ln -s d link", "link/tool"),
        name if name.contains("mapping") => (
            "python3 $PROGRAMS/swaps.py mapping & while ! test -e mapped; do sleep 0.02; done",
            "d/tool",
        ),
        _ => ("ln d/tool other", "d/tool"),
    };
    format!(
        "mkdir d; printf '#!/bin/sh\\necho good\\n' >d/tool; printf '#!/bin/sh\\necho evil\\n' >evil\n\
         chmod +x d/tool evil; {first}\n\
         {tool} >said 2>errors & tool=$!\n\
         while ! test -e asked; do sleep 0.02; done\n\
         {program}\n: >changed\nwait $tool\nkill $(jobs -p) 2>/dev/null\ncat said errors; grep -q evil said\n"
    )
}

//! Functions of the language that look at a command's arguments whatever their order.
//!
//! What is an option, and which of them has a value, only the program itself knows. So each function errs
//! on its own side: [`may_have`] finds an option in whatever could be one, for rules that refuse it, and
//! [`are_only`] takes nothing for harmless that could be another option, for rules that allow.

use anyhow::anyhow;
use starlark::environment::GlobalsBuilder;
use starlark::starlark_module;
use starlark::values::list::{AllocList, ListRef, UnpackList};
use starlark::values::structs::StructRef;
use starlark::values::tuple::UnpackTuple;
use starlark::values::{Heap, Value};

use super::language::{described, field};

/// The name of a long option without its value.
fn name(argument: &str) -> &str {
    argument.split_once('=').map_or(argument, |(name, _)| name)
}

fn is_long(option: &str) -> bool {
    option.starts_with("--")
}

/// A letter behind one dash.
fn letter(option: &str) -> Option<char> {
    let mut rest = option.strip_prefix('-')?.chars();
    let letter = rest.next().filter(|letter| *letter != '-')?;
    rest.next().is_none().then_some(letter)
}

/// Programs whose first argument is letters of options also without a dash: `tar(1)`, `ar(1)`, `ps(1)`.
const WITHOUT_A_DASH: [&str; 7] = ["tar", "gtar", "bsdtar", "star", "ar", "gcc-ar", "ps"];

/// Whether an argument could be, or hold, an option: written out, shortened as `getopt_long(3)` allows,
/// with its value behind it or in the same word, or as one letter among others.
pub(in crate::policyd) fn may_have(argument: &str, option: &str) -> bool {
    if argument == option || name(argument) == option {
        return true;
    }
    if is_long(option) {
        let name = name(argument);
        // One dash is enough for some (`getopt_long_only`), and `-Wfoo` is `--foo` for others.
        let behind_w = name.strip_prefix("-W").unwrap_or_default();
        return (name.len() > 2 && option.starts_with(name) && is_long(name))
            || (name.len() > 1 && !is_long(name) && option[1..].starts_with(name))
            || (!behind_w.is_empty() && option[2..].starts_with(behind_w));
    }
    if let Some(letter) = letter(option) {
        argument.len() > 1
            && argument.starts_with('-')
            && !is_long(argument)
            && argument[1..].contains(letter)
    } else {
        // A word behind one dash, with its value in the same word. Who takes one dash for it takes two (OpenSSL, Go).
        let behind_one = argument.strip_prefix('-').unwrap_or_default();
        option.len() > 1
            && option.starts_with('-')
            && (argument.starts_with(option) || behind_one.starts_with(option))
    }
}

/// Whether an argument can be nothing but an operand or one of these options.
fn is_only(argument: &str, allowed: &[&str]) -> bool {
    // What `date`, editors and compilers take for more than an operand too.
    let is_operand = argument == "-" || !argument.starts_with(['-', '+', '@']);
    if is_operand || allowed.contains(&argument) {
        return true;
    }
    if is_long(argument) {
        return argument.contains('=') && allowed.contains(&name(argument));
    }
    let Some(letters) = argument.strip_prefix('-') else {
        return false;
    };
    letters
        .chars()
        .all(|one| allowed.iter().any(|option| letter(option) == Some(one)))
}

fn are_only(arguments: &[String], allowed: &[&str]) -> bool {
    arguments.iter().all(|argument| is_only(argument, allowed))
}

fn texts<'v>(
    what: &str,
    values: impl IntoIterator<Item = Value<'v>>,
) -> anyhow::Result<Vec<&'v str>> {
    values
        .into_iter()
        .map(|value| {
            value
                .unpack_str()
                .ok_or_else(|| anyhow!("{what} is {}: write strings", described(value)))
        })
        .collect()
}

/// The arguments as such a program reads them: the first with a dash, and what follows a bare `-W` with that.
fn as_options(program: Option<&str>, arguments: &[&str]) -> Vec<String> {
    let mut read: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
    if let (Some(first), true) = (
        read.first_mut(),
        program.is_some_and(|name| WITHOUT_A_DASH.contains(&name)),
    ) && !first.starts_with('-')
    {
        first.insert(0, '-');
    }
    let behind_w = arguments.windows(2).filter(|pair| pair[0] == "-W");
    read.extend(behind_w.map(|pair| format!("--{}", pair[1])));
    read
}

/// The last part of an exec's path.
fn basename(exec: Value<'_>) -> Option<&str> {
    field(StructRef::from_value(exec)?, "basename")?.unpack_str()
}

/// The arguments of an exec, and whether they are all that there is to know of them.
fn arguments<'v>(function: &str, exec: Value<'v>) -> anyhow::Result<(Vec<&'v str>, bool)> {
    let not_one = || {
        anyhow!(
            "{function}() is given {}: give it what decide() is given, as in {function}(exec, ...)",
            described(exec)
        )
    };
    let fields = StructRef::from_value(exec).ok_or_else(not_one)?;
    let list = |name: &str| field(fields, name).and_then(ListRef::from_value);
    let arguments = texts("an argument", list("args").ok_or_else(not_one)?.iter())?;
    let is_whole = field(fields, "is_exact").and_then(Value::unpack_bool) == Some(true)
        && list("redacted_arguments").is_none_or(|list| list.is_empty());
    Ok((arguments, is_whole))
}

#[starlark_module]
pub(super) fn options(builder: &mut GlobalsBuilder) {
    /// Whether one of the options may be among the arguments, wherever.
    fn has_option<'v>(
        exec: Value<'v>,
        #[starlark(args)] options: UnpackTuple<Value<'v>>,
    ) -> anyhow::Result<bool> {
        let options = texts("an option", options.items)?;
        if options.is_empty() || options.iter().any(|option| !option.starts_with('-')) {
            return Err(anyhow!(
                "has_option() is given {options:?}: name the options, as in has_option(exec, \"-c\", \
                 \"--config\")"
            ));
        }
        let (arguments, _) = arguments("has_option", exec)?;
        Ok(as_options(basename(exec), &arguments)
            .iter()
            .any(|argument| options.iter().any(|option| may_have(argument, option))))
    }

    /// Whether all arguments that could be options are among those that are allowed.
    fn only_options<'v>(exec: Value<'v>, allowed: UnpackList<Value<'v>>) -> anyhow::Result<bool> {
        let allowed = texts("an allowed option", allowed.items)?;
        let (arguments, is_whole) = arguments("only_options", exec)?;
        let arguments = as_options(basename(exec), &arguments);
        Ok(is_whole && are_only(&arguments, &allowed))
    }

    /// The names of what begins with a dash, in order, without values that are in the same word.
    fn options<'v>(exec: Value<'v>, heap: Heap<'v>) -> anyhow::Result<Value<'v>> {
        let (arguments, _) = arguments("options", exec)?;
        let found: Vec<_> = arguments
            .iter()
            .filter(|argument| argument.len() > 1 && argument.starts_with('-'))
            .map(|argument| heap.alloc(name(argument)))
            .collect();
        Ok(heap.alloc(AllocList(found)))
    }

    /// The arguments that don't begin with a dash, in order.
    fn operands<'v>(exec: Value<'v>, heap: Heap<'v>) -> anyhow::Result<Value<'v>> {
        let (arguments, _) = arguments("operands", exec)?;
        let found: Vec<_> = arguments
            .iter()
            .filter(|argument| **argument == "-" || !argument.starts_with('-'))
            .map(|argument| heap.alloc(*argument))
            .collect();
        Ok(heap.alloc(AllocList(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_found_in_each_form_that_it_can_have() {
        let found = [
            ("-c", "-c"),
            ("-ccore.pager=x", "-c"),
            ("-pc", "-c"),
            ("--checkpoint-action=exec=x", "--checkpoint-action"),
            ("--checkpoint-act=exec=x", "--checkpoint-action"),
            ("-checkpoint-action", "--checkpoint-action"),
            ("--upload-pack", "--upload-pack"),
            ("-exec", "-exec"),
            ("--engine", "-engine"),
            ("--engine=x", "-engine"),
            ("-oProxyCommand=x", "-o"),
            ("-é", "-é"),
            ("-Wcheckpoint-act=exec=x", "--checkpoint-action"),
        ];
        for (argument, option) in found {
            assert!(may_have(argument, option), "{argument} {option}");
        }
        let other = [
            ("c", "-c"),
            ("-", "-c"),
            ("--", "--config"),
            ("--color", "-c"),
            ("--checkpoint", "--check"),
            ("--list", "--checkpoint-action"),
            ("file", "--file"),
            ("", "-c"),
            ("-W", "--checkpoint-action"),
            ("-Wall", "--checkpoint-action"),
        ];
        for (argument, option) in other {
            assert!(!may_have(argument, option), "{argument} {option}");
        }
    }

    #[test]
    fn options_without_a_dash_are_options_where_the_program_takes_them() {
        let read = |program, arguments: &[&str]| as_options(Some(program), arguments);
        assert_eq!(read("tar", &["cIf", "x"]), ["-cIf", "x"]);
        assert_eq!(read("tar", &["-c", "If"]), ["-c", "If"]);
        assert_eq!(read("git", &["commit"]), ["commit"]);
        assert_eq!(as_options(None, &["cIf"]), ["cIf"]);
        assert_eq!(
            read("gawk", &["-W", "load=x", "y"]),
            ["-W", "load=x", "y", "--load=x"]
        );
        assert!(!are_only(&read("tar", &["xIf", "sh", "x"]), &["-x", "-f"]));
        assert!(are_only(&read("tar", &["xf", "x"]), &["-x", "-f"]));
    }

    #[test]
    fn only_what_can_be_nothing_else_is_allowed() {
        let allowed = ["-m", "-v", "--mode", "-type"];
        for argument in [
            "-m",
            "-mv",
            "--mode",
            "--mode=644",
            "file",
            "-",
            "-type",
            "",
        ] {
            assert!(is_only(argument, &allowed), "{argument}");
        }
        for argument in [
            "-m644",
            "-x",
            "-mx",
            "--mod=1",
            "--modes",
            "--",
            "-exec",
            "@file",
            "+cmd",
            "--mode-x=1",
        ] {
            assert!(!is_only(argument, &allowed), "{argument}");
        }
    }
}

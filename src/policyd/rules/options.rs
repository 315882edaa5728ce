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

/// Whether an argument could be, or hold, an option: written out, shortened as `getopt_long(3)` allows,
/// with its value behind it or in the same word, or as one letter among others.
pub(in crate::policyd) fn may_have(argument: &str, option: &str) -> bool {
    if argument == option || name(argument) == option {
        return true;
    }
    if is_long(option) {
        let name = name(argument);
        // `-W foo` is `--foo` for some, and one dash is enough for others (`getopt_long_only`).
        return (name.len() > 2 && option.starts_with(name) && is_long(name))
            || (name.len() > 1 && !is_long(name) && option[1..].starts_with(name));
    }
    match letter(option) {
        Some(letter) => {
            argument.len() > 1
                && argument.starts_with('-')
                && !is_long(argument)
                && argument[1..].contains(letter)
        }
        // A word behind one dash, with its value in the same word.
        None => option.len() > 1 && option.starts_with('-') && argument.starts_with(option),
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

fn are_only(arguments: &[&str], allowed: &[&str]) -> bool {
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
        Ok(arguments
            .iter()
            .any(|argument| options.iter().any(|option| may_have(argument, option))))
    }

    /// Whether all arguments that could be options are among those that are allowed.
    fn only_options<'v>(exec: Value<'v>, allowed: UnpackList<Value<'v>>) -> anyhow::Result<bool> {
        let allowed = texts("an allowed option", allowed.items)?;
        let (arguments, is_whole) = arguments("only_options", exec)?;
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
            ("-oProxyCommand=x", "-o"),
            ("-é", "-é"),
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
        ];
        for (argument, option) in other {
            assert!(!may_have(argument, option), "{argument} {option}");
        }
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

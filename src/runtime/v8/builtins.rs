//! The engine's own functions in JavaScript's calling convention, and those among them that run
//! bytecodes.

use std::ops::Range;

use crate::elf::{Definitions, Elf, largest_gap};

/// The beginning of their names.
const BUILTIN: &str = "Builtins_";
/// Those that build the frame of an interpreted function, or enter one that is there.
const TRAMPOLINES: [&str; 4] = [
    "InterpreterEntryTrampoline",
    "InterpreterEntryTrampolineForProfiling",
    "InterpreterEnterAtBytecode",
    "InterpreterEnterAtNextBytecode",
];
/// The first of the handlers of bytecodes, which come last, and how their names end.
const FIRST_HANDLER: &str = "WideHandler";
const HANDLER: &str = "Handler";
/// Minimum and maximum length in bytes of all of them.
const LEN_MIN: u64 = 256 << 10;
const LEN_MAX: u64 = 16 << 20;

/// What an address among the engine's own functions is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BuiltinRole {
    /// The function that enters the interpreter.
    Trampoline,
    /// The handler of a bytecode: the function in the frame is interpreted.
    Handler,
    /// Another function.
    Other,
    /// The file does not tell.
    Unknown,
}

/// The functions in a file. Addresses are SVMAs.
#[derive(Debug, Clone, Default)]
pub(super) struct Builtins {
    /// All of them. Empty if they are not found.
    pub(super) code: Range<u64>,
    /// The addresses of those with a role other than [`BuiltinRole::Other`], sorted.
    roles: Vec<(Range<u64>, BuiltinRole)>,
}

impl Builtins {
    /// Finds the functions. Without symbols, they are the largest piece of code without call frame
    /// information.
    pub(super) fn of(elf: &Elf<'_>, names: &Definitions<'_, '_>) -> Self {
        let named = names.own_after(BUILTIN);
        let named: Vec<_> =
            named.into_iter().filter_map(|(name, it)| Some((name, it.range()?))).collect();
        let start = named.iter().map(|(_, range)| range.start).min();
        let end = named.iter().map(|(_, range)| range.end).max();
        let code = start.zip(end).map(|(start, end)| start..end);
        let code = code.or_else(|| largest_gap(elf)).filter(|code| {
            let len = code.end.saturating_sub(code.start);
            (LEN_MIN..=LEN_MAX).contains(&len)
        });
        Self { code: code.unwrap_or_default(), roles: roles(&named) }
    }

    /// Returns the lengths of the functions that enter the interpreter, which the engine may copy.
    pub(super) fn trampoline_lens(&self) -> Vec<u64> {
        let trampolines = self.roles.iter().filter(|(_, role)| *role == BuiltinRole::Trampoline);
        trampolines.map(|(range, _)| range.end - range.start).collect()
    }

    /// Returns what an address is a part of.
    pub(super) fn role_at(&self, svma: u64) -> BuiltinRole {
        if self.roles.is_empty() || !self.code.contains(&svma) {
            return BuiltinRole::Unknown;
        }
        let after = self.roles.partition_point(|(range, _)| range.start <= svma);
        let last = after.checked_sub(1).and_then(|index| self.roles.get(index));
        last.filter(|(range, _)| range.contains(&svma))
            .map_or(BuiltinRole::Other, |(_, role)| *role)
    }
}

/// Returns the addresses of trampolines and handlers.
fn roles(named: &[(&str, Range<u64>)]) -> Vec<(Range<u64>, BuiltinRole)> {
    let first = named.iter().find(|(name, _)| *name == FIRST_HANDLER);
    let first = first.map_or(u64::MAX, |(_, range)| range.start);
    let role = |name: &str, start: u64| {
        let is_handler = start >= first && name.ends_with(HANDLER);
        match TRAMPOLINES.contains(&name) {
            true => Some(BuiltinRole::Trampoline),
            false => is_handler.then_some(BuiltinRole::Handler),
        }
    };
    let with_role =
        |(name, range): &(&str, Range<u64>)| Some((range.clone(), role(name, range.start)?));
    let mut roles: Vec<_> = named.iter().filter_map(with_role).collect();
    roles.sort_unstable_by_key(|(range, _)| range.start);
    roles
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn handlers_are_told_from_others_that_are_called_so() {
        let named = [
            ("WideHandler", 0x400..0x440),
            ("InterpreterEntryTrampoline", 0x100..0x180),
            ("AsyncResolveHandler", 0x200..0x240),
            ("LdaZeroHandler", 0x440..0x460),
            ("ArrayMap", 0x300..0x400),
        ];
        let builtins = Builtins { code: 0x100..0x460, roles: roles(&named) };
        let role = |svma| builtins.role_at(svma);
        assert_eq!([0x100, 0x17f].map(role), [BuiltinRole::Trampoline; 2]);
        assert_eq!([0x180, 0x200, 0x3ff].map(role), [BuiltinRole::Other; 3]);
        assert_eq!([0x400, 0x45f].map(role), [BuiltinRole::Handler; 2]);
        assert_eq!([0, 0x460].map(role), [BuiltinRole::Unknown; 2]);
        assert_eq!(Builtins::default().role_at(0), BuiltinRole::Unknown);
    }
}

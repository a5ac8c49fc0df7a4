//! What the file with the interpreter says about it.
//!
//! Programs need the function by which a file is recognised, so stripped files have it as well. The
//! interpreter is one block of hand-written code. Its instructions say where the variables are, and
//! that structures are those of the releases.

use std::ops::Range;

use crate::elf::{Definitions, Elf, functions_around};
use crate::runtime::ManagedLanguage;
use crate::runtime::carriers::Carriers;
use crate::runtime::interpreter_file::{Interpreter, InterpreterFile};
use crate::runtime::loops::number_at;

/// The function by which a file is recognised.
const EXPORTED: &str = "luaJIT_setmode";
/// The beginning of the text with the version.
const VERSION: &[u8] = b"LuaJIT ";
/// Maximum length of that text.
const VERSION_MAX: usize = 48;

/// What begins where a thread of Lua does: it saves registers, makes the frame, and saves the
/// thread of Lua there.
///
/// ```text
/// push %rbp; push %rbx; push %r15; push %r14; sub $40,%rsp
/// mov %rdi,%rbp; mov %rdi,16(%rsp); mov %rsi,%rcx; mov $5,%ebx
/// ```
const RESUME: &[u8] = b"\x55\x53\x41\x57\x41\x56\x48\x83\xec\x28\x48\x89\xfd\x48\x89\x7c\x24\x10\
    \x48\x89\xf1\xbb\x05\x00\x00\x00";
/// `add $n,%r14`: from the variables of a program to what the interpreter refers to.
const ADD_BASE: &[u8] = b"\x49\x81\xc6";
/// `mov %rbp,n(%r14)`, then `movl $-1,n(%r14)`: the thread of Lua that runs, and what runs.
const SET_THREAD: &[u8] = b"\x49\x89\xae";
const SET_STATE: &[u8] = b"\x41\xc7\x86";
const STATE: &[u8] = &[0xff; 4];
/// `mov n(%r14),%rcx`, `mov (%rcx,%rax,8),%rax`, `mov n(%rax),%rax`, `mov 16(%rsp),%rbp`: the
/// traces, one of them, the address of its code, and the thread of Lua.
const LOAD_TRACES: &[u8] = b"\x49\x8b\x8e";
const LOAD_TRACE: &[u8] = b"\x48\x8b\x04\xc1\x48\x8b\x40";
const LOAD_THREAD: &[u8] = b"\x48\x8b\x6c\x24\x10";
/// `mov %rdx,n(%r14)`, `mov %rbp,n(%r14)`, and the jump to compiled code with what it saves.
const SET_COMPILED: &[u8] = b"\x49\x89\x96";
const JUMP: &[u8] = b"\x48\x83\xec\x10\x4c\x89\x64\x24\x10\x4c\x89\x6c\x24\x08\xff\xe0";
/// Instructions that have offsets in structures: the constants of a prototype, from its first
/// instruction on, and of a function, from the prototype on.
const PROTOTYPE: [&[u8]; 2] = [b"\x4c\x8b\x7b\xb4", b"\x4d\x8b\x7f\x20\x4d\x8b\x7f\xb8"];
/// The end of each instruction of Lua.
const NEXT: &[u8] = b"\x8b\x03\x0f\xb6\xcc\x0f\xb6\xe8\x48\x83\xc3\x04\xc1\xe8\x10\x41\xff\x24\xee";

static LUA: Interpreter = Interpreter {
    language: ManagedLanguage::Lua,
    interpret: "lj_vm_asm_begin",
    carriers: Carriers {
        files: &["luajit", "libluajit"],
        prefixes: &["lj_", "lua_", "luaL_", "luaJIT_"],
        others: &["pmain", "docall", "dochunk", "handle_script", "main"],
    },
};

/// An interpreter in a file. Addresses are SVMAs.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct LuaExports {
    pub(in crate::runtime) file: InterpreterFile,
    /// Where the variables are, if the build is known.
    pub(super) variables: Option<LuaVariables>,
}

/// Where variables are, from the first one of a program on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LuaVariables {
    /// The thread of Lua that runs.
    pub(super) current: u16,
    /// What runs.
    pub(super) state: u16,
    /// The base of the frame in which compiled code began.
    pub(super) compiled_base: u16,
    /// The array of traces.
    pub(super) traces: u16,
    /// From a trace to the address of its code.
    pub(super) machine_code: u16,
    /// The table of the code for each kind of instruction, through which [`NEXT`] jumps.
    pub(super) dispatch: u16,
}

impl LuaExports {
    /// Returns whether the structures of this build are known.
    pub(in crate::runtime) fn is_supported(&self) -> bool {
        self.structures().is_ok()
    }

    /// Reads a file. `None` if it has no interpreter.
    pub(in crate::runtime) fn of(elf: &Elf<'_>, path: &str) -> Option<Self> {
        // Few files have the function.
        Definitions::of(elf).exported(EXPORTED)?;
        let block = block(elf);
        let code = block.as_ref().and_then(|block| {
            let len = usize::try_from(block.end - block.start).ok()?;
            elf.data(block.start)?.get(..len)
        });
        let label = version(elf).unwrap_or_else(|| "LuaJIT".to_owned());
        Some(Self {
            variables: code.and_then(LuaVariables::of),
            file: InterpreterFile::of((elf, path), label, &LUA, None)?.with_loop(block),
        })
    }

    /// Returns the code and the variables, or why they are not known.
    pub(super) fn structures(&self) -> Result<(Range<u64>, LuaVariables), &'static str> {
        let code = self.file.loops().first();
        let known = code.zip(self.variables);
        let known = known.map(|(code, variables)| (code.clone(), variables));
        known.ok_or("is not built as its releases of 2.1 for x86-64 are")
    }
}

#[cfg(any(test, fuzzing))]
impl LuaExports {
    /// Makes an interpreter whose addresses are small.
    pub(in crate::runtime) fn for_test() -> Self {
        let loops = std::iter::once(0..0x100).collect();
        Self {
            file: InterpreterFile::for_test("LuaJIT 2.1".to_owned(), &LUA, loops),
            variables: Some(LuaVariables {
                current: 0x40,
                state: 0x48,
                compiled_base: 0x50,
                traces: 0x58,
                machine_code: 0x58,
                dispatch: 0x60,
            }),
        }
    }
}

impl LuaVariables {
    /// Reads the code of the interpreter.
    fn of(code: &[u8]) -> Option<Self> {
        let is_known = PROTOTYPE.into_iter().all(|it| first_in(code, it).is_some());
        if !is_known || first_in(code, NEXT).is_none() {
            return None;
        }
        let begun = code.get(first_in(code, RESUME)?..)?;
        let base = number_at(begun, first_in(begun, ADD_BASE)? + ADD_BASE.len())?;
        let variable = |at: usize| u16::try_from(number_at(code, at)?.checked_add(base)?).ok();
        let (current, state) = all_in(code, SET_THREAD).find_map(|at| {
            let at = at + SET_THREAD.len();
            let set = code.get(at + 4..)?.strip_prefix(SET_STATE)?;
            let is_state = set.get(4..)?.starts_with(STATE);
            is_state.then_some((at, at + 4 + SET_STATE.len()))
        })?;
        let way = WayToCompiled::of(code)?;
        Some(Self {
            current: variable(current)?,
            state: variable(state)?,
            compiled_base: variable(way.compiled_base)?,
            traces: variable(way.traces)?,
            machine_code: way.machine_code,
            dispatch: u16::try_from(base).ok()?,
        })
    }
}

/// What the interpreter does before it jumps to compiled code. A build without the compiler has no
/// such code, but code of another build that is not recognised looks the same.
struct WayToCompiled {
    /// Where the code has the distances of variables.
    traces: usize,
    compiled_base: usize,
    /// From a trace to the address of its code.
    machine_code: u16,
}

impl WayToCompiled {
    fn of(code: &[u8]) -> Option<Self> {
        const NUMBER: usize = 4;
        let jump = first_in(code, JUMP)?;
        let parts = [
            (LOAD_TRACES, NUMBER),
            (LOAD_TRACE, 1),
            (LOAD_THREAD, 0),
            (SET_COMPILED, NUMBER),
            (SET_THREAD, NUMBER),
        ];
        let len: usize = parts.iter().map(|(part, operand)| part.len() + operand).sum();
        let mut at = jump.checked_sub(len)?;
        let mut operands = [0; 5];
        for (operand, (part, len)) in operands.iter_mut().zip(parts) {
            code[at..].starts_with(part).then_some(())?;
            *operand = at + part.len();
            at = *operand + len;
        }
        let [traces, machine_code, _, compiled_base, _] = operands;
        let machine_code = u16::from(code[machine_code]);
        // A length of four bytes is before it.
        let is_field = machine_code.is_multiple_of(8) && (8..0x80).contains(&machine_code);
        is_field.then_some(Self { traces, compiled_base, machine_code })
    }
}

/// Returns where a part is in some bytes.
fn all_in<'b>(bytes: &'b [u8], part: &'b [u8]) -> impl Iterator<Item = usize> + 'b {
    let windows = bytes.windows(part.len()).enumerate();
    windows.filter(move |(_, window)| *window == part).map(|(at, _)| at)
}

/// Returns where a part is for the first time.
fn first_in(bytes: &[u8], part: &[u8]) -> Option<usize> {
    all_in(bytes, part).next()
}

/// Returns the block of code of the interpreter.
fn block(elf: &Elf<'_>) -> Option<Range<u64>> {
    let code = elf.loads().iter().filter(|load| load.exec);
    let resume = code.filter_map(|load| {
        let at = first_in(elf.data(load.svma)?, RESUME)?;
        Some(load.svma + at as u64)
    });
    functions_around(elf, &[resume.into_iter().next()?]).into_iter().next().flatten()
}

/// Returns the version, such as `LuaJIT 2.1.0-beta3`.
fn version(elf: &Elf<'_>) -> Option<String> {
    let constants = elf.loads().iter().filter(|load| !load.write && !load.exec);
    let found = constants.filter_map(|load| {
        let bytes = elf.data(load.svma)?;
        all_in(bytes, VERSION).find_map(|at| {
            let text = bytes[at..].split(|byte| *byte == 0).next()?;
            let is_version = text.get(VERSION.len()).is_some_and(u8::is_ascii_digit);
            let text = std::str::from_utf8(text).ok().filter(|_| is_version)?;
            let is_short = text.len() <= VERSION_MAX && !text.contains(" --");
            (is_short && !text.contains(char::is_control)).then(|| text.to_owned())
        })
    });
    found.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code() -> Vec<u8> {
        let number = |number: i32| number.to_le_bytes();
        [
            RESUME,
            ADD_BASE,
            &number(0xf80),
            SET_THREAD,
            &number(-0xd00),
            SET_THREAD,
            &number(-0xe10),
            SET_STATE,
            &number(-0xec8),
            STATE,
            PROTOTYPE[0],
            PROTOTYPE[1],
            LOAD_TRACES,
            &number(-0xb28),
            LOAD_TRACE,
            &[0x58],
            LOAD_THREAD,
            SET_COMPILED,
            &number(-0xe08),
            SET_THREAD,
            &number(-0xea0),
            JUMP,
            NEXT,
        ]
        .concat()
    }

    #[test]
    fn the_code_says_where_the_variables_are() {
        let expected = LuaVariables {
            current: 0x170,
            state: 0xb8,
            compiled_base: 0x178,
            traces: 0x458,
            machine_code: 0x58,
            dispatch: 0xf80,
        };
        assert_eq!(LuaVariables::of(&code()), Some(expected));
    }

    #[test]
    fn other_code_is_not_known() {
        let before = [RESUME, ADD_BASE, SET_STATE, STATE, PROTOTYPE[0], PROTOTYPE[1]];
        let behind = [LOAD_TRACES, LOAD_TRACE, LOAD_THREAD, SET_COMPILED, JUMP, NEXT];
        for part in before.into_iter().chain(behind) {
            let mut other = code();
            let at = first_in(&other, part).unwrap();
            other[at + part.len() - 1] ^= 1;
            assert_eq!(LuaVariables::of(&other), None, "{part:x?}");
        }
        for len in 0..code().len() {
            LuaVariables::of(&code()[..len]);
        }
    }
}

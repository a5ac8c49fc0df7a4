//! What the file with the interpreter says about it.
//!
//! Extensions need most of the names that are used here, so stripped files have them as well. What
//! a stripped file has no name of is found in the code of functions that use it.

use std::ops::Range;

use super::offsets::{RubyStructures, structures};
use super::version::RubyVersion;
use crate::elf::{Definition, Definitions, Elf, ThreadLocals, TlsAccess, functions_around};
use crate::runtime::ManagedLanguage;
use crate::runtime::carriers::Carriers;
use crate::runtime::decode::{thread_local_in, variables_in};
use crate::runtime::interpreter_file::{Interpreter, InterpreterFile};
use crate::runtime::loops::number_at;

/// The variable with a thread's context.
const CONTEXT: &str = "ruby_current_ec";
/// The function that interprets code.
const LOOP: &str = "rb_vm_exec";
/// Number of bytes of a function that are decoded.
const DECODED: usize = 320;
/// Maximum number of bytes of a function that runs the code of files: some compilers put the code
/// of others into it.
const CALLER_DECODED: usize = 4096;

static RUBY: Interpreter = Interpreter {
    language: ManagedLanguage::Ruby,
    interpret: LOOP,
    carriers: Carriers {
        files: &["ruby", "libruby"],
        prefixes: &["rb_", "ruby_", "vm_", "Init_", "iseq_", "gc_"],
        others: &["invoke_*", "call_cfunc*", "thread_start_func*", "thread_do_start*", "yield_*"],
    },
};

/// An interpreter in a file. Addresses are SVMAs.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct RubyExports {
    pub(in crate::runtime) file: InterpreterFile,
    pub(super) version: RubyVersion,
    /// What is known only of files that have it all.
    pub(super) places: Option<RubyPlaces>,
}

/// Where the interpreter's variables are.
#[derive(Debug, Clone, Default)]
pub(super) struct RubyPlaces {
    /// The possible addresses of the variable with the machine.
    pub(super) machine: Vec<u64>,
    /// The variable with the class of all objects.
    pub(super) object_class: u64,
    /// The ways to the variable with a thread's context.
    pub(super) context: Vec<TlsAccess>,
    /// The possible addresses of the table of symbols.
    pub(super) symbols: Vec<u64>,
}

impl RubyExports {
    /// Returns whether the structures of this version are known.
    pub(in crate::runtime) fn is_supported(&self) -> bool {
        self.structures().is_ok()
    }

    /// Reads a file. `None` if it has no interpreter.
    pub(in crate::runtime) fn of(elf: &Elf<'_>, path: &str) -> Option<Self> {
        let names = Definitions::of(elf);
        // Few files have the constant, and a look at all symbols takes long.
        let version = names.exported("ruby_version")?;
        names.exported("ruby_description")?;
        let version = RubyVersion::of_constant(elf.data(version.svma)?);
        let interpret = names.exported(LOOP).or_else(|| loop_in_callers(elf));
        Some(Self {
            file: InterpreterFile::of((elf, path), version.to_string(), &RUBY, interpret)?,
            version,
            places: places(elf),
        })
    }

    /// Returns the structures of this version, or why they are not known.
    pub(super) fn structures(&self) -> Result<(&RubyPlaces, RubyStructures), &'static str> {
        let known = self.version.minor().and_then(structures);
        let known = known.ok_or("is not supported (releases of 3.1 and 3.3 are)")?;
        let has_loop = !self.file.loops().is_empty();
        let places = self.places.as_ref().filter(|it| has_loop && it.are_all());
        places.map(|places| (places, known)).ok_or("does not show where it has its variables")
    }
}

impl RubyPlaces {
    /// Returns whether each variable has a place where it may be.
    fn are_all(&self) -> bool {
        let Self { machine, context, symbols, .. } = self;
        !machine.is_empty() && !context.is_empty() && !symbols.is_empty()
    }
}

#[cfg(any(test, fuzzing))]
impl RubyExports {
    /// Makes an interpreter of this version whose addresses are small.
    pub(in crate::runtime) fn for_test(version: &str) -> Self {
        let version = RubyVersion::of_constant(version.as_bytes());
        let loops = std::iter::once(0..0x10).collect();
        Self {
            file: InterpreterFile::for_test(version.to_string(), &RUBY, loops),
            version,
            places: Some(RubyPlaces {
                machine: vec![0],
                object_class: 8,
                context: vec![TlsAccess::Offset(8u64.wrapping_neg())],
                symbols: vec![16],
            }),
        }
    }
}

fn places(elf: &Elf<'_>) -> Option<RubyPlaces> {
    let names = ["ruby_current_vm_ptr", "rb_cObject", "rb_id2str"];
    let [machine, object_class, name_of] = Definitions::of(elf).named(names);
    let machine = machine.map(|it| vec![it.svma]);
    Some(RubyPlaces {
        machine: machine.or_else(|| machines_in_user(elf))?,
        object_class: object_class?.svma,
        context: contexts(elf),
        symbols: symbols(elf, name_of?),
    })
}

/// Finds the function that interprets code, which only 3.1 exports: two functions run the code of
/// files, and call nothing else both that begins where a function does.
fn loop_in_callers(elf: &Elf<'_>) -> Option<Definition> {
    let called_by = |name: &str| {
        let function = Definitions::of(elf).exported(name)?;
        Some(jump_targets(code_of(elf, function, CALLER_DECODED)?, function.svma))
    };
    let others = called_by("rb_iseq_eval_main")?;
    let mut common: Vec<u64> = called_by("rb_iseq_eval")?;
    common.retain(|target| others.contains(target));
    common.sort_unstable();
    common.dedup();
    let functions = functions_around(elf, &common);
    let starts = functions.into_iter().zip(common);
    let mut found = starts.filter_map(|(function, target)| {
        let range = function.filter(|range| range.start == target)?;
        Some(Definition { svma: target, len: range.end - range.start })
    });
    found.next().filter(|_| found.next().is_none())
}

/// Returns the possible addresses of the variable with the machine, which a function uses that
/// extensions may call.
fn machines_in_user(elf: &Elf<'_>) -> Option<Vec<u64>> {
    let function = Definitions::of(elf).exported("ruby_vm_at_exit")?;
    Some(variables_of(elf, decoded(elf, function)?, function.svma))
}

/// Returns the ways to the variable with a thread's context: by its name, or else in a function
/// that uses it.
fn contexts(elf: &Elf<'_>) -> Vec<TlsAccess> {
    let named = ThreadLocals::of(elf).ways_to(CONTEXT);
    if !named.is_empty() {
        return named;
    }
    let user = Definitions::of(elf).exported("rb_thread_current");
    let found = user.and_then(|it| thread_local_in(decoded(elf, it)?, it.svma));
    found.into_iter().collect()
}

/// Returns the possible addresses of the table of symbols: the function that reads their names uses
/// it, or jumps to one that does.
fn symbols(elf: &Elf<'_>, name_of: Definition) -> Vec<u64> {
    let own = decoded(elf, name_of).unwrap_or_default();
    let functions = std::iter::once(name_of.svma).chain(jump_targets(own, name_of.svma));
    let found = functions.filter_map(|svma| {
        let code = elf.data(svma)?;
        Some(variables_of(elf, code.get(..DECODED.min(code.len()))?, svma))
    });
    found.flatten().collect()
}

/// Returns the possible addresses of the variables that a function uses.
fn variables_of(elf: &Elf<'_>, code: &[u8], svma: u64) -> Vec<u64> {
    let data = elf.loads().iter().filter(|load| load.write);
    let data = data.filter_map(|it| Some(it.svma..it.svma.checked_add(it.mem_len)?));
    let found = data.flat_map(|data: Range<u64>| {
        let variables = variables_in(code, svma, &data);
        variables.into_iter().map(move |at| data.start + u64::from(at))
    });
    found.collect()
}

/// Returns what may be the targets of a function's calls and jumps.
fn jump_targets(code: &[u8], svma: u64) -> Vec<u64> {
    let jumps = code.iter().enumerate().filter(|(_, byte)| matches!(byte, 0xe8 | 0xe9));
    let targets = jumps.filter_map(|(at, _)| {
        let behind = svma.wrapping_add(at as u64 + 5);
        Some(behind.wrapping_add_signed(number_at(code, at + 1)?))
    });
    targets.collect()
}

/// Returns the bytes of a function, or its first ones.
fn decoded<'a>(elf: &Elf<'a>, function: Definition) -> Option<&'a [u8]> {
    code_of(elf, function, DECODED)
}

/// Returns the first bytes of a function, at most this many.
fn code_of<'a>(elf: &Elf<'a>, function: Definition, max: usize) -> Option<&'a [u8]> {
    let code = elf.data(function.svma)?;
    code.get(..max.min(function.len as usize).min(code.len()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_file_that_hides_a_variable_is_refused() {
        let check = |hide: fn(&mut RubyPlaces)| {
            let mut exports = RubyExports::for_test("3.3.8");
            exports.places.as_mut().map(hide).unwrap();
            exports.structures().map(|_| ()).map_err(|reason| reason.to_owned())
        };
        assert_eq!(check(|_| {}), Ok(()));
        let refused = Err("does not show where it has its variables".to_owned());
        assert_eq!(check(|it| it.machine.clear()), refused);
        assert_eq!(check(|it| it.context.clear()), refused);
        assert_eq!(check(|it| it.symbols.clear()), refused);
    }

    /// Makes a library with two functions that run code, in which this much is before the call.
    fn library(before: usize) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let [source, library] = ["library.s", "library.so"].map(|name| folder.path().join(name));
        let function = |name: &str, code: &str| {
            format!(
                ".type {name}, @function\n{name}:\n.cfi_startproc\n{code}\nret\n.cfi_endproc\n\
                 .size {name}, . - {name}\n.p2align 4\n"
            )
        };
        let mut text = String::from(".text\n.globl rb_iseq_eval, rb_iseq_eval_main\n");
        text += &function("other", "nop");
        text += &function("interpret", "nop\nnop");
        for name in ["rb_iseq_eval", "rb_iseq_eval_main"] {
            text += &function(name, &format!(".skip {before}, 0x90\ncall interpret"));
        }
        std::fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-nostdlib", "-o"]).args([&library, &source]);
        assert!(compiler.status().unwrap().success());
        std::fs::read(library).unwrap()
    }

    #[test]
    fn the_loop_is_what_both_functions_call_that_run_code() {
        for before in [0, 600] {
            let bytes = library(before);
            let elf = Elf::parse(&bytes).unwrap();
            let found = loop_in_callers(&elf).map(|it| it.len);
            assert_eq!(found, Some(3), "{before}");
        }
    }
}

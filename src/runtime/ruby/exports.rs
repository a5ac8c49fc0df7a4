//! What the file with the interpreter says about it.
//!
//! Extensions need most of the names that are used here, so stripped files have them as well.

use std::ops::Range;

use super::offsets::{RubyStructures, structures};
use super::version::RubyVersion;
use crate::elf::{Definition, Definitions, Elf, ThreadLocals, TlsAccess};
use crate::runtime::ManagedLanguage;
use crate::runtime::carriers::Carriers;
use crate::runtime::decode::variables_in;
use crate::runtime::interpreter_file::{Interpreter, InterpreterFile};
use crate::runtime::loops::number_at;

/// The variable with a thread's context.
const CONTEXT: &str = "ruby_current_ec";
/// Number of bytes of a function that are decoded.
const DECODED: usize = 320;

static RUBY: Interpreter = Interpreter {
    language: ManagedLanguage::Ruby,
    interpret: "rb_vm_exec",
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
    /// The variable with the machine.
    pub(super) machine: u64,
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
        let interpret = names.exported(RUBY.interpret);
        Some(Self {
            file: InterpreterFile::of((elf, path), version.to_string(), &RUBY, interpret)?,
            version,
            places: places(elf),
        })
    }

    /// Returns the structures of this version, or why they are not known.
    pub(super) fn structures(&self) -> Result<(&RubyPlaces, RubyStructures), &'static str> {
        let known = self.version.minor().and_then(structures);
        let known = known.ok_or("is not supported (releases of 3.1 are)")?;
        let places = self.places.as_ref().filter(|_| !self.file.loops().is_empty());
        places.map(|places| (places, known)).ok_or("does not export its variables")
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
                machine: 0,
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
    Some(RubyPlaces {
        machine: machine?.svma,
        object_class: object_class?.svma,
        context: ThreadLocals::of(elf).ways_to(CONTEXT),
        symbols: symbols(elf, name_of?),
    })
}

/// Returns the possible addresses of the table of symbols: the function that reads their names uses
/// it, or jumps to one that does.
fn symbols(elf: &Elf<'_>, name_of: Definition) -> Vec<u64> {
    let data = elf.loads().iter().filter(|load| load.write);
    let data: Vec<Range<u64>> =
        data.filter_map(|it| Some(it.svma..it.svma.checked_add(it.mem_len)?)).collect();
    let own = decoded(elf, name_of.svma, name_of.len as usize).unwrap_or_default();
    let jumped = own.iter().enumerate().filter(|(_, byte)| matches!(byte, 0xe8 | 0xe9));
    let jumped = jumped.filter_map(|(at, _)| {
        let behind = name_of.svma.wrapping_add(at as u64 + 5);
        Some(behind.wrapping_add_signed(number_at(own, at + 1)?))
    });
    let functions = std::iter::once(name_of.svma).chain(jumped);
    let mut found: Vec<u64> = Vec::new();
    for function in functions {
        let Some(code) = decoded(elf, function, DECODED) else { continue };
        for data in &data {
            let variables = variables_in(code, function, data);
            found.extend(variables.into_iter().map(|at| data.start + u64::from(at)));
        }
    }
    found
}

/// Returns bytes of a function.
fn decoded<'a>(elf: &Elf<'a>, svma: u64, len: usize) -> Option<&'a [u8]> {
    let code = elf.data(svma)?;
    code.get(..len.min(DECODED).min(code.len()))
}

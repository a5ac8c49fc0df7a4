//! What the file with the interpreter says about it.
//!
//! Extensions need the names that are used here, so stripped files have them as well.

use super::offsets::{PhpStructures, structures};
use super::version::PhpVersion;
use crate::elf::{Definition, Definitions, Elf};
use crate::runtime::ManagedLanguage;
use crate::runtime::carriers::Carriers;
use crate::runtime::interpreter_file::{Interpreter, InterpreterFile};

/// The function that interprets code.
const LOOP: &str = "execute_ex";
/// The kind of loops that keep their frame and their position in registers.
const WITH_REGISTERS: u32 = 4;

static PHP: Interpreter = Interpreter {
    language: ManagedLanguage::Php,
    interpret: LOOP,
    carriers: Carriers {
        files: &["php", "libphp"],
        prefixes: &["zend_", "_zend_", "php_", "_php_", "zif_", "zim_", "ZEND_", "sapi_", LOOP],
        others: &["_call_user_function*", "do_cli", "spl_*"],
    },
};

/// An interpreter in a file. Addresses are SVMAs.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct PhpExports {
    pub(in crate::runtime) file: InterpreterFile,
    pub(super) version: PhpVersion,
    /// Its global variables. Builds for several threads have them elsewhere.
    pub(super) globals: Option<u64>,
    /// Whether the loop keeps its frame and its position in registers.
    pub(super) has_registers: bool,
}

impl PhpExports {
    /// Returns whether the structures of this version are known.
    pub(in crate::runtime) fn is_supported(&self) -> bool {
        self.structures().is_ok()
    }

    /// Returns the loop whose frame compiled functions share: see
    /// [`crate::runtime::RuntimeExports::shared_loop`].
    pub(in crate::runtime) fn shared_loop(&self) -> Option<std::ops::Range<u64>> {
        self.file.loops().first().filter(|_| self.has_registers).cloned()
    }

    /// Reads a file. `None` if it has no interpreter.
    pub(in crate::runtime) fn of(elf: &Elf<'_>, path: &str) -> Option<Self> {
        let names = Definitions::of(elf);
        // Few files have the function, and a look at all symbols takes long.
        let interpret = names.exported(LOOP)?;
        let kind = names.exported("zend_vm_kind")?;
        let globals = names.exported("executor_globals");
        let constants = elf.loads().iter().filter(|load| !load.write);
        let constants = constants.filter_map(|load| {
            let bytes = elf.data(load.svma)?;
            bytes.get(..bytes.len().min(usize::try_from(load.file_len).ok()?))
        });
        let version = PhpVersion::of_constants(constants);
        Some(Self {
            file: InterpreterFile::of((elf, path), version.to_string(), &PHP, Some(interpret))?,
            version,
            globals: globals.map(|it| it.svma),
            // A build whose kind is unknown has no lines that may be wrong.
            has_registers: returned(elf, kind).is_none_or(|kind| kind == WITH_REGISTERS),
        })
    }

    /// Returns the structures of this version, or why they are not known.
    pub(super) fn structures(&self) -> Result<(u64, PhpStructures), &'static str> {
        let Some(globals) = self.globals.filter(|_| !self.version.is_thread_safe) else {
            return Err("for several threads (ZTS) is not supported");
        };
        let known = self.version.interface.and_then(structures);
        let known = known.filter(|_| !self.version.is_debug);
        known.map(|known| (globals, known)).ok_or("is not supported (releases of 8.1 to 8.4 are)")
    }
}

#[cfg(any(test, fuzzing))]
impl PhpExports {
    /// Makes an interpreter of this version whose addresses are small.
    pub(in crate::runtime) fn for_test(interface: u32, has_registers: bool) -> Self {
        let build = format!("X-Powered-By: PHP/8\0API{interface},NTS");
        let version = PhpVersion::of_constants([build.as_bytes()].into_iter());
        Self {
            file: InterpreterFile::for_test(version.to_string(), &PHP, Vec::new()),
            version,
            globals: Some(0),
            has_registers,
        }
    }
}

/// Returns the number that a function returns, if it does nothing else.
fn returned(elf: &Elf<'_>, function: Definition) -> Option<u32> {
    let code = elf.data(function.svma)?;
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    match code {
        // mov NUMBER, %eax; ret
        [0xb8, a, b, c, d, 0xc3, ..] => Some(u32::from_le_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

//! What the file that defines `_PyRuntime` says about the interpreter.
//!
//! Extension modules need the names that are used here, so stripped files have them as well.

use std::ops::Range;

use super::carriers::CARRIERS;
use super::version::PythonVersion;
use crate::elf::{Definition, Definitions, Elf, ThreadLocals, TlsAccess};
use crate::runtime::ManagedLanguage;
use crate::runtime::decode::{thread_local_in, variables_in};
use crate::runtime::interpreter_file::{Interpreter, InterpreterFile};

const RUNTIME: &str = "_PyRuntime";
static PYTHON: Interpreter = Interpreter {
    language: ManagedLanguage::Python,
    interpret: "_PyEval_EvalFrameDefault",
    carriers: CARRIERS,
};
const THREAD_STATE: &str = "_Py_tss_tstate";
/// Length in bytes of the smallest `_PyRuntime`.
const RUNTIME_MIN: u64 = 512;
/// Maximum number of bytes of a small function that are decoded.
const DECODED_MAX: usize = 96;
/// Versions before 3.11 have no version number that other modules may read. Each version has this
/// function, and those before it do not.
const SINCE: [(&str, u8); 3] =
    [("PyCode_NewWithPosOnlyArgs", 8), ("PyModule_AddType", 9), ("PyIter_Send", 10)];

/// An interpreter in a file. Addresses are SVMAs.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct PythonExports {
    pub(in crate::runtime) file: InterpreterFile,
    pub(super) version: PythonVersion,
    /// `PY_VERSION_HEX`, or 0 if the file does not tell.
    pub(super) number: u32,
    pub(super) runtime: u64,
    pub(super) code_type: u64,
    /// The types of strings and of `bytes`, if they are known.
    pub(super) text_type: Option<u64>,
    pub(super) bytes_type: Option<u64>,
    /// The types of dictionaries and of numbers, if they are known.
    pub(super) dict_type: Option<u64>,
    pub(super) number_type: Option<u64>,
    /// Possible offsets in the runtime's state of the key that holds the states of threads.
    pub(super) keys: Vec<u32>,
    /// The ways to the variable that holds the state of the thread with the lock.
    pub(super) state: Vec<TlsAccess>,
    pub(super) data: Range<u64>,
}

impl PythonExports {
    /// Returns whether the structures of this version are known.
    pub(in crate::runtime) fn is_supported(&self) -> bool {
        self.version.is_supported()
    }

    /// Reads a file. `None` if it defines no interpreter.
    pub(in crate::runtime) fn of(elf: &Elf<'_>, path: &str) -> Option<Self> {
        let names = Definitions::of(elf);
        let own = || names.own_variable(RUNTIME, RUNTIME_MIN);
        let runtime = names.exported(RUNTIME).or_else(own)?;
        let types = ["PyUnicode_Type", "PyBytes_Type", "PyDict_Type", "PyLong_Type"];
        let types = names.named(types).map(|it| it.map(|it| it.svma));
        let [text_type, bytes_type, dict_type, number_type] = types;
        let [code_type, number, interpret, by_key, current] = names.named([
            "PyCode_Type",
            "Py_Version",
            PYTHON.interpret,
            "PyGILState_GetThisThreadState",
            "_PyThreadState_GetCurrent",
        ]);
        let number = number.and_then(|it| number_at(elf, it.svma)).unwrap_or(0);
        let version = PythonVersion::of_number(number).unwrap_or_else(|| old_version(elf));
        let state = runtime.range().unwrap_or(runtime.svma..runtime.svma + RUNTIME_MIN);
        let keys = by_key.and_then(|it| Some(variables_in(decoded(elf, it)?, it.svma, &state)));
        let variable = || {
            let current = current?;
            thread_local_in(decoded(elf, current)?, current.svma)
        };
        let mut ways = ThreadLocals::of(elf).ways_to_own(THREAD_STATE);
        if ways.is_empty() {
            ways.extend(variable());
        }
        let end = elf.loads().iter().filter_map(|load| load.svma.checked_add(load.mem_len)).max();
        Some(Self {
            file: InterpreterFile::of((elf, path), version.to_string(), &PYTHON, Some(interpret?))?,
            version,
            number,
            runtime: runtime.svma,
            code_type: code_type?.svma,
            text_type,
            bytes_type,
            dict_type,
            number_type,
            keys: keys.unwrap_or_default(),
            state: ways,
            data: elf.loads().first()?.svma..end?,
        })
    }
}

#[cfg(any(test, fuzzing))]
impl PythonExports {
    /// Makes an interpreter of this minor version whose addresses are small.
    pub(in crate::runtime) fn for_test(minor: u8) -> Self {
        let number = 0x0300_00f0 | u32::from(minor) << 16;
        let version = PythonVersion::of_number(number).unwrap_or_else(|| unreachable!());
        Self {
            file: InterpreterFile::for_test(version.to_string(), &PYTHON, Vec::new()),
            version,
            number,
            runtime: 0,
            code_type: 0x9c0,
            text_type: None,
            bytes_type: None,
            dict_type: None,
            number_type: None,
            keys: vec![8, 16],
            state: vec![TlsAccess::Offset(8u64.wrapping_neg())],
            data: 0..0x1000,
        }
    }
}

fn number_at(elf: &Elf<'_>, svma: u64) -> Option<u32> {
    elf.data(svma)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Returns the first bytes of a function.
fn decoded<'a>(elf: &Elf<'a>, function: Definition) -> Option<&'a [u8]> {
    let code = elf.data(function.svma)?;
    let len = usize::try_from(function.len).ok().filter(|len| *len > 0).unwrap_or(DECODED_MAX);
    code.get(..len.min(DECODED_MAX).min(code.len()))
}

/// Returns the version of an interpreter before 3.11.
fn old_version(elf: &Elf<'_>) -> PythonVersion {
    let found = Definitions::of(elf).named(SINCE.map(|(name, _)| name));
    let known = found.iter().zip(SINCE).filter(|(found, _)| found.is_some());
    let minor = known.map(|(_, (_, minor))| minor).max().unwrap_or(7);
    let constants = elf.loads().iter().filter(|load| !load.write);
    let constants = constants.filter_map(|load| {
        let bytes = elf.data(load.svma)?;
        bytes.get(..bytes.len().min(usize::try_from(load.file_len).ok()?))
    });
    PythonVersion::of_strings(minor, constants)
}

//! Code of a Java machine, as the recorder has read it from the target.

use std::sync::Arc;

use traceprof_abi::runtime::word::FrameInPlace;

use crate::runtime::Gone;
use crate::runtime::java::{BlobKind, CodeBlob, CompiledCode, JavaMethod, JavaReader};
use crate::symbol::{Inlined, Resolved, ResolvedFunction};
use crate::trace::FrameKind;

/// The code that was found at an address.
#[derive(Debug, Clone)]
pub(crate) struct FoundJava {
    /// The address (AVMA).
    pub(crate) avma: u64,
    /// Since when it is there, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) since_ns: u64,
    /// The code. `None` if it is not known what is there since then.
    pub(crate) code: Option<Arc<JavaCode>>,
}

/// A method, or why it could not be read.
pub(crate) type ReadMethod = Result<Arc<JavaMethod>, Gone>;

/// The method that was found at an address.
#[derive(Debug, Clone)]
pub(crate) struct FoundMethod {
    /// The address of its structure (AVMA).
    pub(crate) object: u64,
    /// Since when it is there, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) since_ns: u64,
    /// The method.
    pub(crate) read: ReadMethod,
}

/// The code at addresses that a batch is the first to use, or that have other code than before.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewJava {
    /// The code.
    pub(crate) found: Vec<FoundJava>,
    /// The methods that are interpreted.
    pub(crate) methods: Vec<FoundMethod>,
    /// Whether all code of earlier batches is dropped first.
    pub(crate) is_fresh: bool,
}

impl NewJava {
    /// Removes all code, and keeps the memory for reuse.
    pub(crate) fn clear(&mut self) {
        self.found.clear();
        self.methods.clear();
        self.is_fresh = false;
    }
}

/// The highest level of the first compiler.
const FIRST_COMPILER: u8 = 3;
/// What stands for the name of a method that could not be read.
const GONE: &str = "[Java: method gone]";
/// The name of the stubs in compiled code through which it calls methods that are not compiled.
const CALL: &str = "[Java: stub of a call]";

/// Returns what stands for the name of a method whose code is gone.
pub(crate) fn gone_method() -> Resolved {
    let function = ResolvedFunction { name: GONE.to_owned(), start_svma: 0 };
    Resolved { function: Some(function), ..Resolved::default() }
}

/// Returns the names of the method of a frame of the interpreter, with the line.
pub(crate) fn resolved_method(method: Option<&JavaMethod>, frame: &FrameInPlace) -> Resolved {
    let bci = method.and_then(|method| method.bci_of(frame));
    let name = method.map_or_else(|| GONE.to_owned(), JavaMethod::full_name);
    Resolved {
        function: Some(ResolvedFunction { name, start_svma: 0 }),
        file: method.and_then(|method| method.file.clone()),
        line: method.zip(bci).map_or(0, |(method, bci)| method.line_at(bci)),
        inlined: Vec::new(),
    }
}

/// A piece of code of a Java machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JavaCode {
    /// A compiled method with all that is inlined into it.
    Compiled(CompiledCode),
    /// The interpreter, or a stub.
    Machine(MachineCode),
}

/// A piece of code that is no method.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MachineCode {
    /// The blob.
    pub(crate) blob: CodeBlob,
    /// The address (AVMA) to which methods return that native code has called.
    pub(crate) call_return: Option<u64>,
}

impl MachineCode {
    /// Returns whether an address is that of a call from native code to a method.
    fn is_call_stub(&self, avma: u64) -> bool {
        // The address of a return is one byte before it.
        self.call_return.is_some_and(|it| it.wrapping_sub(1) == avma)
    }

    /// Returns whether an address is in code that only carries calls of methods.
    fn is_call(&self, avma: u64) -> bool {
        let is_carrier = matches!(self.blob.kind, BlobKind::Adapter | BlobKind::TableStub);
        is_carrier || self.is_call_stub(avma)
    }
}

impl JavaCode {
    /// Reads the code of a blob.
    pub(crate) fn read(blob: &CodeBlob, reader: &JavaReader<'_>) -> Result<Self, Gone> {
        match blob.compiled {
            Some(_) => reader.compiled(blob).map(Self::Compiled),
            None => Ok(Self::Machine(MachineCode {
                blob: blob.clone(),
                call_return: reader.call_return(),
            })),
        }
    }

    /// Returns the blob that has the code.
    pub(crate) fn blob(&self) -> &CodeBlob {
        match self {
            Self::Compiled(code) => &code.blob,
            Self::Machine(code) => &code.blob,
        }
    }

    /// Returns the bytes of memory that the code takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Compiled(code) => code.bytes(),
            Self::Machine(code) => size_of::<MachineCode>() + code.blob.name.len(),
        }
    }

    /// Returns whether it is a method.
    pub(crate) fn is_method(&self) -> bool {
        matches!(self, Self::Compiled(_))
    }

    /// Returns the kind of the frames at an address.
    pub(crate) fn kind_at(&self, avma: u64) -> FrameKind {
        match self {
            // They only carry calls between methods.
            Self::Machine(code) if code.is_call(avma) => FrameKind::Interpreter,
            Self::Compiled(code) if code.is_call(avma) => FrameKind::Interpreter,
            Self::Compiled(code) => match (code.blob.kind, code.identity.level) {
                (BlobKind::NativeWrapper, _) => FrameKind::Native,
                (_, ..=FIRST_COMPILER) => FrameKind::JavaC1,
                _ => FrameKind::JavaC2,
            },
            Self::Machine(_) => FrameKind::Native,
        }
    }

    /// Returns the methods that an address belongs to.
    ///
    /// Functions have no start: all compilations of a method are one function.
    pub(crate) fn resolved(&self, avma: u64) -> Resolved {
        let named = |name: String| ResolvedFunction { name, start_svma: 0 };
        match self {
            Self::Machine(code) => {
                let name = match code.blob.kind {
                    BlobKind::Interpreter => "[Java interpreter]".to_owned(),
                    _ if code.is_call_stub(avma) => "[Java: call_stub]".to_owned(),
                    _ => format!("[Java: {}]", code.blob.name),
                };
                Resolved { function: Some(named(name)), ..Resolved::default() }
            }
            Self::Compiled(code) if code.is_call(avma) => {
                Resolved { function: Some(named(CALL.to_owned())), ..Resolved::default() }
            }
            Self::Compiled(code) => {
                let mut positions = code.at(avma).into_iter().rev().map(|position| {
                    let name = position.method.map(JavaMethod::full_name);
                    let file = position.method.and_then(|method| method.file.clone());
                    let name = name.unwrap_or_else(|| GONE.to_owned());
                    Inlined { name, file, line: position.line() }
                });
                let outer = positions.next();
                let Some(Inlined { name, file, line }) = outer else { return Resolved::default() };
                let inlined = positions.collect();
                Resolved { function: Some(named(name)), file, line, inlined }
            }
        }
    }
}

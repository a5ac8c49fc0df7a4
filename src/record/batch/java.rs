//! Code of a Java machine, as the recorder has read it from the target.

use std::sync::Arc;

use crate::runtime::Gone;
use crate::runtime::java::{BlobKind, CodeBlob, CompiledCode, JavaMethod, JavaReader};
use crate::symbol::{Inlined, Resolved, ResolvedFunction};
use crate::trace::FrameKind;

/// The code that was found at an address.
#[derive(Debug, Clone)]
pub(crate) struct FoundJava {
    /// The address (AVMA).
    pub(crate) avma: u64,
    /// When other code was last seen at the address, in CLOCK_MONOTONIC nanoseconds; 0 if none was.
    pub(crate) since_ns: u64,
    /// The code.
    pub(crate) code: Arc<JavaCode>,
}

/// The code at addresses that a batch is the first to use, or that have other code than before.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewJava {
    /// The code.
    pub(crate) found: Vec<FoundJava>,
    /// Whether all code of earlier batches is dropped first.
    pub(crate) is_fresh: bool,
}

impl NewJava {
    /// Removes all code, and keeps the memory for reuse.
    pub(crate) fn clear(&mut self) {
        self.found.clear();
        self.is_fresh = false;
    }
}

/// The highest level of the first compiler.
const FIRST_COMPILER: u8 = 3;
/// What stands for the name of a method that could not be read.
const GONE: &str = "[Java: method gone]";

/// A piece of code of a Java machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JavaCode {
    /// A compiled method with all that is inlined into it.
    Compiled(CompiledCode),
    /// The interpreter, or a stub.
    Machine(CodeBlob),
}

impl JavaCode {
    /// Reads the code of a blob.
    pub(crate) fn read(blob: &CodeBlob, reader: &JavaReader<'_>) -> Result<Self, Gone> {
        match blob.compiled {
            Some(_) => reader.compiled(blob).map(Self::Compiled),
            None => Ok(Self::Machine(blob.clone())),
        }
    }

    /// Returns the blob that has the code.
    pub(crate) fn blob(&self) -> &CodeBlob {
        match self {
            Self::Compiled(code) => &code.blob,
            Self::Machine(blob) => blob,
        }
    }

    /// Returns the bytes of memory that the code takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Compiled(code) => code.bytes(),
            Self::Machine(blob) => size_of::<CodeBlob>() + blob.name.len(),
        }
    }

    /// Returns the kind of its frames.
    pub(crate) fn kind(&self) -> FrameKind {
        match self {
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
            Self::Machine(blob) => {
                let name = match blob.kind {
                    BlobKind::Interpreter => "[Java interpreter]".to_owned(),
                    _ => format!("[Java: {}]", blob.name),
                };
                Resolved { function: Some(named(name)), ..Resolved::default() }
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

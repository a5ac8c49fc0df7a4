//! What the file that contains V8 says about it: the constants for debuggers, which stripped files
//! have as well.

use std::ops::Range;

use object::elf::EM_X86_64;

use super::builtins::{BuiltinRole, Builtins};
use super::bytecode_sizes::BytecodeSizes;
use super::constants::{V8Constants, number_at};
use super::layout::ObjectLayout;
use super::version::V8Version;
use crate::elf::{Definitions, Elf};
use crate::runtime::Unsupported;

/// The constant that all versions have.
const SMALL_INTEGERS: &str = "v8dbg_SmiValueShift";
const VERSION: [&str; 2] = ["_ZN2v88internal7Version6major_E", "_ZN2v88internal7Version6minor_E"];
const BYTECODE_SIZES: &str = "_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE";
const NODE_METADATA: &str = "_ZN4node11per_process8metadataE";

/// V8 in a file. Addresses are SVMAs.
#[derive(Debug, Clone)]
pub struct V8Exports {
    pub(super) path: String,
    pub(super) version: V8Version,
    pub(super) layout: Result<ObjectLayout, String>,
    pub(super) builtins: Builtins,
    pub(super) sizes: BytecodeSizes,
    /// Where Node.js has its versions, if the file has Node.js.
    pub(super) node_metadata: Option<u64>,
}

impl V8Exports {
    /// Reads a file. `None` if it has no V8 that describes itself.
    pub fn of(bytes: &[u8], path: &str) -> Option<Self> {
        let elf = Elf::parse(bytes).ok().filter(|elf| elf.machine() == EM_X86_64.0)?;
        let names = Definitions::of(&elf);
        names.exported(SMALL_INTEGERS)?;
        let constants = V8Constants::of(&elf, &names);
        let [major, minor] = names.named(VERSION).map(|it| number_at(&elf, it?.svma));
        let number = |value: Option<i32>| value.and_then(|it| u32::try_from(it).ok());
        let version = V8Version { major: number(major)?, minor: number(minor)? };
        let [sizes, metadata] = names.named([BYTECODE_SIZES, NODE_METADATA]);
        Some(Self {
            path: path.to_owned(),
            version,
            layout: ObjectLayout::of(version, &constants),
            builtins: Builtins::of(&elf, &names),
            sizes: BytecodeSizes::of(&elf, sizes),
            node_metadata: metadata.map(|it| it.svma),
        })
    }

    /// Returns whether the objects of this version are known.
    pub fn is_supported(&self) -> bool {
        self.layout.is_ok()
    }

    /// Returns the addresses (SVMAs) of the engine's own functions in JavaScript's calling
    /// convention. Empty if they are unknown.
    pub fn builtins(&self) -> Range<u64> {
        self.builtins.code.clone()
    }

    /// Returns what an address (SVMA) among these functions is a part of.
    pub fn builtin_at(&self, svma: u64) -> BuiltinRole {
        self.builtins.role_at(svma)
    }

    pub(super) fn refused(&self, reason: &str) -> Unsupported {
        let (path, version) = (&self.path, self.version);
        let text = format!(
            "{path}: {version} {reason}, so its functions have no names: those that are compiled \
             have, if the program is started with `node --perf-basic-prof`"
        );
        Unsupported { text, may_be_starting: false }
    }
}

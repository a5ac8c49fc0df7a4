//! What the file of a HotSpot machine says: where its description of itself is.

use crate::elf::{Definitions, Elf, ThreadLocals, TlsAccess};

/// `Thread::_thr_current`, the variable with the structure of a thread.
const THREAD: &str = "_ZN6Thread12_thr_currentE";

/// The symbols of a table: the pointer to its first entry, the length of an entry, and the offsets
/// of what an entry has. Addresses are SVMAs.
#[derive(Debug, Clone)]
pub(super) struct TableSymbols<const N: usize> {
    pub(super) entries: u64,
    pub(super) stride: u64,
    pub(super) offsets: [u64; N],
}

/// A HotSpot machine in a file.
#[derive(Debug, Clone)]
pub struct JavaExports {
    pub(super) path: String,
    /// The fields of structures: type, name, type of the field, whether it is static, its offset,
    /// its address.
    pub(super) fields: TableSymbols<6>,
    /// The types: name, size.
    pub(super) types: TableSymbols<2>,
    /// Constants: name, value.
    pub(super) ints: TableSymbols<2>,
    pub(super) longs: TableSymbols<2>,
    /// The ways to the variable with the structure of a thread. Empty if the file is stripped.
    pub(super) threads: Vec<TlsAccess>,
}

impl JavaExports {
    /// Reads a file. `None` if it has no machine that describes itself.
    pub fn of(bytes: &[u8], path: &str) -> Option<Self> {
        let elf = Elf::parse(bytes).ok()?;
        let names = Definitions::of(&elf);
        // Stripped machines have these symbols, too, for their debugger. Other files have none.
        names.exported("gHotSpotVMStructs")?;
        Some(Self {
            path: path.to_owned(),
            fields: table(
                &names,
                ["gHotSpotVMStructs", "gHotSpotVMStructEntryArrayStride"],
                [
                    "gHotSpotVMStructEntryTypeNameOffset",
                    "gHotSpotVMStructEntryFieldNameOffset",
                    "gHotSpotVMStructEntryTypeStringOffset",
                    "gHotSpotVMStructEntryIsStaticOffset",
                    "gHotSpotVMStructEntryOffsetOffset",
                    "gHotSpotVMStructEntryAddressOffset",
                ],
            )?,
            types: table(
                &names,
                ["gHotSpotVMTypes", "gHotSpotVMTypeEntryArrayStride"],
                ["gHotSpotVMTypeEntryTypeNameOffset", "gHotSpotVMTypeEntrySizeOffset"],
            )?,
            ints: table(
                &names,
                ["gHotSpotVMIntConstants", "gHotSpotVMIntConstantEntryArrayStride"],
                ["gHotSpotVMIntConstantEntryNameOffset", "gHotSpotVMIntConstantEntryValueOffset"],
            )?,
            longs: table(
                &names,
                ["gHotSpotVMLongConstants", "gHotSpotVMLongConstantEntryArrayStride"],
                ["gHotSpotVMLongConstantEntryNameOffset", "gHotSpotVMLongConstantEntryValueOffset"],
            )?,
            threads: ThreadLocals::of(&elf).ways_to_own(THREAD),
        })
    }
}

/// Returns whether a file has an agent of a machine, which may redefine classes: with the functions
/// that the machine calls when it loads one.
pub fn has_agent(bytes: &[u8]) -> bool {
    let Ok(elf) = Elf::parse(bytes) else { return false };
    let names = Definitions::of(&elf);
    ["Agent_OnLoad", "Agent_OnAttach"].iter().any(|it| names.exported(it).is_some())
}

fn table<const N: usize>(
    names: &Definitions<'_, '_>,
    [entries, stride]: [&str; 2],
    offsets: [&str; N],
) -> Option<TableSymbols<N>> {
    let [entries, stride] = names.named([entries, stride]);
    let found = names.named(offsets);
    let mut offsets = [0; N];
    for (offset, found) in offsets.iter_mut().zip(found) {
        *offset = found?.svma;
    }
    Some(TableSymbols { entries: entries?.svma, stride: stride?.svma, offsets })
}

//! A HotSpot machine in a live process.

use std::ops::Range;

use super::blob::CodeBlob;
use super::code_layout::CodeLayout;
use super::compiled::CompiledCode;
use super::exports::JavaExports;
use super::heaps::code_heaps;
use super::layout::MachineLayout;
use super::method::{InterpretedMethod, MethodReader};
use super::numbers::NumberFormat;
use super::objects::{JavaObjectReader, ObjectOptions, ObjectShape};
use super::tables::{Missing, Tables};
use super::thread_fields::KnownThreadFields;
use super::threads::{JavaThread, ThreadReader};
use crate::runtime::memory::TargetMemory;
use crate::runtime::pages::TargetPages;
use crate::runtime::witness::{Witness, which_hold};
use crate::runtime::{Gone, Unsupported};

/// The versions whose structures are known.
const SUPPORTED: [u8; 5] = [8, 11, 17, 21, 25];
/// Maximum number of options of a machine.
const OPTIONS_MAX: u64 = 1 << 13;
const NAME_MAX: usize = 256;

/// A HotSpot machine.
#[derive(Debug, Clone)]
pub struct JavaMachine {
    /// The machine with its version, such as `Java 17.0.15`.
    pub label: String,
    /// The addresses (AVMAs) that its code may have: one range for each heap.
    pub code: Vec<Range<u64>>,
    pub(super) layout: MachineLayout,
    pub(super) entries: CodeLayout,
    format: NumberFormat,
    objects: ObjectShape,
    thread_fields: KnownThreadFields,
    /// Where the pointer to the counters is, and whether methods may be replaced.
    pub(super) counters: Option<u64>,
    pub(super) redefines: Option<u64>,
    /// Whether it says that methods may be replaced even if no agent may do that.
    always_redefines: bool,
}

/// The version of a machine.
struct JavaVersion {
    major: u8,
    label: String,
}

impl JavaMachine {
    /// Returns whether [`may_redefine`](super::may_redefine) says nothing about agents.
    pub fn always_may_redefine(&self) -> bool {
        self.always_redefines
    }
}

impl JavaExports {
    /// Finds the machine in a process that has loaded the file, with this load bias.
    ///
    /// The result is `None` if the machine is not initialised yet: a later call may find it.
    ///
    /// # Errors
    /// [`Unsupported`] if the version or build of the machine is not known.
    pub fn locate(
        &self,
        bias: u64,
        memory: &dyn TargetMemory,
    ) -> Result<Option<JavaMachine>, Unsupported> {
        let pages = TargetPages::of(memory);
        let Some(tables) = Tables::read(self, bias, &pages) else { return Ok(None) };
        let Some(version) = JavaVersion::read(&tables, &pages) else { return Ok(None) };
        if !SUPPORTED.contains(&version.major) {
            let reason = "is not supported (8, 11, 17, 21 and 25 are)";
            return Err(self.refused(&version, reason, false));
        }
        // A machine that starts fills its tables one entry after the other.
        let missing = |Missing(what): Missing| {
            self.refused(&version, &format!("does not describe {what}"), true)
        };
        let layout = MachineLayout::of(&tables, version.major).map_err(missing)?;
        let entries = CodeLayout::of(&tables, version.major).map_err(missing)?;
        let Some(options) = options(&tables, &pages) else {
            return Err(self.refused(&version, "does not describe its options", true));
        };
        let objects = ObjectShape::of(&tables, version.major, options, &pages).map_err(missing)?;
        let Some(heaps) = code_heaps(&layout.heaps, &pages) else { return Ok(None) };
        Ok(Some(JavaMachine {
            code: heaps.into_iter().map(|heap| heap.reserved).collect(),
            layout,
            entries,
            format: if version.major > 17 { NumberFormat::NotZero } else { NumberFormat::Any },
            objects,
            thread_fields: KnownThreadFields::new(),
            counters: tables.address(&["PerfMemory::_start"]).ok(),
            redefines: tables.address(&["JvmtiExport::_can_hotswap_or_post_breakpoint"]).ok(),
            always_redefines: version.major > 21,
            label: version.label,
        }))
    }

    fn refused(&self, version: &JavaVersion, reason: &str, may_be_starting: bool) -> Unsupported {
        let (path, label) = (&self.path, &version.label);
        let text = format!(
            "{path}: {label} {reason}, so its methods have no names: see Java in \
             traceprof-runtimes(7)"
        );
        Unsupported { text, may_be_starting }
    }
}

impl JavaVersion {
    /// Reads the version. `None` if the machine has not set it yet.
    fn read(tables: &Tables, pages: &TargetPages<'_>) -> Option<Self> {
        let major = match tables.address(&["JDK_Version::_current"]) {
            Ok(at) => u32::from(pages.byte(at)?),
            Err(_) => {
                let at = tables.address(&["Abstract_VM_Version::_vm_major_version"]).ok()?;
                pages.half(at)?
            }
        };
        let major = u8::try_from(major).ok().filter(|major| *major > 0)?;
        let release = tables.address(&["Abstract_VM_Version::_s_vm_release"]).ok();
        let release = release.and_then(|at| pages.text(pages.word(at)?, NAME_MAX));
        // Java 8 has the number of the machine here, which is another one.
        let release = release.unwrap_or_default();
        let number = release.split(['+', '-']).next().unwrap_or_default();
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let is_it = number.split('.').next() == Some(&major.to_string());
        let label = if is_it && is_number { number.to_owned() } else { major.to_string() };
        Some(Self { major, label: format!("Java {label}") })
    }
}

/// Reads the options that decide how objects are stored.
fn options(tables: &Tables, pages: &TargetPages<'_>) -> Option<ObjectOptions> {
    let first = pages.word(tables.address(&["JVMFlag::flags", "Flag::flags"]).ok()?)?;
    let count = pages.word(tables.address(&["JVMFlag::numFlags", "Flag::numFlags"]).ok()?)?;
    let name = tables.field(&["JVMFlag::_name", "Flag::_name"]).ok()?;
    let value = tables.field(&["JVMFlag::_addr", "Flag::_addr"]).ok()?;
    let size = tables.size("JVMFlag").or_else(|_| tables.size("Flag")).ok()?;
    let mut options = ObjectOptions::default();
    for index in 0..Some(count).filter(|count| *count <= OPTIONS_MAX)? {
        let flag = first.checked_add(index * size)?;
        // The last one has no name.
        let Some(name) = name.read(pages, flag).filter(|it| *it != 0) else { continue };
        let name = pages.text(name, NAME_MAX)?;
        let option = match name.as_str() {
            "UseCompressedOops" => &mut options.compressed,
            "UseCompressedClassPointers" => &mut options.compressed_class,
            "UseCompactObjectHeaders" => &mut options.compact_headers,
            "UseZGC" => &mut options.zgc,
            "ZGenerational" => &mut options.zgc_generational,
            "UseSerialGC" | "UseParallelGC" | "UseG1GC" => &mut options.stops_to_move,
            _ => continue,
        };
        *option |= pages.byte(value.read(pages, flag)?)? != 0;
    }
    Some(options)
}

impl JavaMachine {
    /// Returns whether references may be out of date, so that what they refer to is not read while
    /// the program runs.
    pub(super) fn has_late_references(&self) -> bool {
        self.objects.has_late_references
    }

    /// Returns whether objects move only while threads wait that are in Java's or the machine's
    /// code.
    pub(super) fn stops_to_move(&self) -> bool {
        self.objects.stops_to_move
    }

    /// Returns whether recordings know the names that the program gives its threads.
    pub fn names_threads(&self) -> bool {
        !self.has_late_references()
    }

    /// Returns whether an address may be code of the machine.
    pub fn may_have(&self, avma: u64) -> bool {
        self.code.iter().any(|range| range.contains(&avma))
    }

    /// Starts to read what the machine has now.
    pub fn now<'m>(&'m self, memory: &'m dyn TargetMemory) -> JavaReader<'m> {
        JavaReader { machine: self, memory, pages: TargetPages::of(memory) }
    }
}

/// What a machine has at one time: memory that was read once is not read again.
pub struct JavaReader<'m> {
    machine: &'m JavaMachine,
    memory: &'m dyn TargetMemory,
    pages: TargetPages<'m>,
}

impl JavaReader<'_> {
    /// Returns the blob that contains an address.
    pub fn blob_at(&self, avma: u64) -> Option<CodeBlob> {
        if !self.machine.may_have(avma) {
            return None;
        }
        let layout = &self.machine.layout;
        let heaps = code_heaps(&layout.heaps, &self.pages)?;
        let heap = heaps.iter().find(|heap| heap.reserved.contains(&avma))?;
        let block = heap.block_at(avma, &layout.heaps, &self.pages)?;
        CodeBlob::read(layout, &block, &self.pages)
    }

    /// Reads the methods that a blob was compiled from.
    pub fn compiled(&self, blob: &CodeBlob) -> Result<CompiledCode, Gone> {
        let layout = &self.machine.layout;
        let found = CompiledCode::read(blob, layout, self.methods())?;
        // The machine may have freed the code meanwhile, and with it what was read.
        let after = self.machine.now(self.memory).blob_at(blob.code.start);
        if after.as_ref() == Some(blob) { Ok(found) } else { Err(Gone::Changing) }
    }

    /// Returns the address (AVMA) to which methods return that native code has called.
    pub fn call_return(&self) -> Option<u64> {
        self.pages.word(self.machine.entries.call_return)
    }

    /// Reads a method that the interpreter runs, given by the address of its structure.
    pub fn interpreted(&self, method: u64) -> Result<InterpretedMethod, Gone> {
        let witness = self.methods().witness(method).ok_or(Gone::Unreadable)?;
        let found = self.methods().method(method)?;
        // The machine may have unloaded the class meanwhile, and with it what was read.
        match which_hold(&[&witness], self.memory)[..] {
            [true] => Ok(InterpretedMethod { method: found, witness }),
            _ => Err(Gone::Changing),
        }
    }

    /// Reads what says that a block has this blob. `None` if that is not readable.
    pub fn blob_witness(&self, blob: &CodeBlob) -> Option<Witness> {
        let MachineLayout { heaps, blob: layout, compiled, .. } = &self.machine.layout;
        let (pages, mut witness) = (&self.pages, Witness::default());
        let block = blob.start.checked_sub(heaps.header_len)?;
        witness.add(pages, block, heaps.block_len)?;
        witness.add(pages, block, heaps.is_used)?;
        witness.add(pages, blob.start, layout.name)?;
        if blob.compiled.is_some() {
            // No other compilation has the number. Code of an unloaded class has no method.
            witness.add(pages, blob.start, compiled.compile_id)?;
            witness.add(pages, blob.start, compiled.method)?;
        }
        Some(witness)
    }

    /// Reads the threads. `None` if there is no list of them yet.
    pub fn threads(&self) -> Option<Vec<JavaThread>> {
        let threads = self.thread_reader();
        let with_work = |structure| {
            let thread = threads.thread(structure)?;
            let compiles = thread.name.as_ref().and_then(|name| self.compiles(structure, name));
            Some(JavaThread { compiles, ..thread })
        };
        Some(threads.thread_structures()?.into_iter().filter_map(with_work).collect())
    }

    /// Starts to read what the machine has later than this.
    pub(super) fn again(&self) -> Self {
        self.machine.now(self.memory)
    }

    pub(super) fn layout(&self) -> &MachineLayout {
        &self.machine.layout
    }

    pub(super) fn pages(&self) -> &TargetPages<'_> {
        &self.pages
    }

    pub(super) fn methods(&self) -> MethodReader<'_> {
        MethodReader {
            layout: &self.machine.layout,
            pages: &self.pages,
            format: self.machine.format,
        }
    }

    pub(super) fn thread_reader(&self) -> ThreadReader<'_> {
        let JavaMachine { layout, objects, format, thread_fields, .. } = self.machine;
        let (shape, pages, format) = (objects, &self.pages, *format);
        let objects = JavaObjectReader { shape, layout, pages, format };
        ThreadReader { objects, known_fields: thread_fields }
    }

    /// Returns the threads: the kernel's ids, and the addresses of the machine's structures.
    #[cfg(test)]
    pub(super) fn structures(&self) -> Option<Vec<(u32, u64)>> {
        let threads = self.thread_reader();
        let with_id = |thread| Some((threads.tid(thread)?, thread));
        Some(threads.thread_structures()?.into_iter().filter_map(with_id).collect())
    }
}

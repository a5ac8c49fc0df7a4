//! Where a machine has what a handler reads of the virtual thread that a thread carries.

use traceprof_abi::context::{RecordKind, TlsLocation};
use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::runtime::java::{JavaLayout, WIDE};

use super::exports::JavaExports;
use super::machine::JavaMachine;
use super::objects::JavaObjectReader;
use super::thread_fields::ThreadFields;
use super::threads::ThreadReader;
use crate::elf::resolve_tls;
use crate::runtime::memory::{TargetMemory, word};

/// Maximum number of threads that are asked for their structures, or their objects.
const THREADS_MAX: usize = 8;
/// Minimum number of threads that must have them where the file says.
const THREADS_MIN: usize = 2;
/// The number of an object, which no other thread has.
const NUMBER: (&str, &str) = ("tid", "J");
/// From an object to its class, if that has a word of its own.
const CLASS: u16 = 8;

/// Returns the block with which handlers name the virtual threads that a machine's threads carry.
/// The machine's file has these exports and this load bias, and `vector` tells the C library.
///
/// The result is `None` if the machine has no virtual threads, if its collector moves objects
/// beside the threads, or if it does not say where a thread finds its structure. A machine that
/// starts has too few threads: a later call may return a block.
pub fn carried_block(
    machine: &JavaMachine,
    (exports, bias): (&JavaExports, u64),
    vector: RecordKind,
    memory: &dyn TargetMemory,
) -> Option<RuntimeBlock> {
    let layout = &machine.layout.thread;
    let running = layout.virtual_thread?;
    if !machine.stops_to_move() || !layout.has_handles {
        return None;
    }
    let reader = machine.now(memory);
    let threads = reader.thread_reader();
    let shape = threads.objects.shape;
    if shape.class_in_mark.is_some() || shape.is_coloured {
        return None;
    }
    let structures = threads.thread_structures()?;
    let variable = exports.threads.iter().find_map(|way| {
        let location = resolve_tls(*way, bias, vector, |avma| word(memory, avma))?;
        are_at(location, &structures, &threads, memory).then_some(location)
    })?;
    let mut objects = structures.iter().take(THREADS_MAX).filter_map(|it| threads.object_of(*it));
    let fields = objects.find_map(|object| {
        let fields = ThreadFields::of(&threads.objects, threads.known_fields, object)?;
        layout_of(&threads.objects, object, fields)
    })?;
    let number = |number: u64| u16::try_from(number).ok();
    Some(RuntimeBlock::of_java(&JavaLayout {
        thread_kind: variable.kind as u64,
        thread_offset: variable.offset,
        thread_module: variable.module,
        state: number(layout.running.at)?,
        state_java: number(layout.running_numbers.java)?,
        state_machine: number(layout.running_numbers.machine)?,
        object: number(layout.object.at)?,
        running: number(running.at)?,
        parent: number(machine.layout.class.parent.at)?,
        ..fields
    }))
}

/// Whether threads have their structures in a variable. Some have none: they start or end.
fn are_at(
    variable: TlsLocation,
    structures: &[u64],
    threads: &ThreadReader<'_>,
    memory: &dyn TargetMemory,
) -> bool {
    let value = |structure: &u64| {
        let pointer = threads.pointer(*structure)?;
        let at = variable.variable(pointer, |avma| word(memory, avma)).ok()??;
        let value = word(memory, at).filter(|value| *value != 0)?;
        Some(value == *structure)
    };
    let found: Vec<bool> = structures.iter().filter_map(value).take(THREADS_MAX).collect();
    found.len() >= THREADS_MIN && found.iter().all(|it| *it)
}

/// Returns the layout of objects, given a thread's object with a name.
fn layout_of(
    objects: &JavaObjectReader<'_>,
    object: u64,
    fields: ThreadFields,
) -> Option<JavaLayout> {
    let shape = objects.shape;
    let number = |number: u64| u16::try_from(number).ok();
    let name = objects.reference(object, fields.name)?;
    let string_class = objects.class_of(name)?;
    objects.string(name)?;
    let pair = |narrow: Option<(u64, u32)>| match narrow {
        Some((base, shift)) => Some((base, u16::try_from(shift).ok()?)),
        None => Some((0, WIDE)),
    };
    let (reference_base, reference_shift) = pair(shape.compressed)?;
    let (class_base, class_shift) = pair(shape.compressed_class)?;
    let (array_len, array_start) = shape.array();
    Some(JavaLayout {
        thread_kind: 0,
        thread_offset: 0,
        thread_module: 0,
        thread_class: fields.class,
        string_class,
        reference_base,
        class_base,
        reference_shift,
        class_shift,
        state: 0,
        state_java: 0,
        state_machine: 0,
        object: 0,
        running: 0,
        class: CLASS,
        parent: 0,
        name: number(fields.name)?,
        number: number(objects.own_field(fields.class, NUMBER)?)?,
        characters: number(objects.own_field(string_class, ("value", "[B"))?)?,
        coder: number(objects.own_field(string_class, ("coder", "B"))?)?,
        array_len: number(array_len)?,
        array_start: number(array_start)?,
        structure: number(fields.structure?)?,
    })
}

//! Where a machine has what a handler reads of the virtual thread that a thread carries.

use traceprof_abi::context::{RecordKind, TlsLocation};
use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::runtime::java::{JavaLayout, WIDE};

use super::exports::JavaExports;
use super::machine::{JavaMachine, JavaReader};
use super::objects::JavaObjectReader;
use super::thread_fields::ThreadFields;
use crate::elf::resolve_tls;
use crate::runtime::memory::{TargetMemory, word};

/// Maximum number of threads that are asked for their structures.
const THREADS_MAX: usize = 8;
/// Minimum number of threads that must have them where the file says.
const THREADS_MIN: usize = 2;
/// The number of an object, which no other thread has.
const NUMBER: (&str, &str) = ("tid", "J");
/// From an object to its class, if that has a word of its own.
const CLASS: u16 = 8;

impl JavaMachine {
    /// Returns the block with which handlers name the virtual threads that threads carry. `exports`
    /// are those of the machine's file, which has this load bias, and `vector` tells the C library.
    ///
    /// The result is `None` if the machine has no virtual threads, if its collector moves objects
    /// beside the threads, or if it does not say where a thread finds its structure. A machine that
    /// starts has too few threads: a later call may return a block.
    pub fn carried_block(
        &self,
        (exports, bias): (&JavaExports, u64),
        vector: RecordKind,
        memory: &dyn TargetMemory,
    ) -> Option<RuntimeBlock> {
        let running = self.layout.thread.virtual_thread?;
        if self.has_moving_collector() || !self.layout.thread.has_handles {
            return None;
        }
        let reader = self.now(memory);
        let variable = exports.threads.iter().find_map(|way| {
            let location = resolve_tls(*way, bias, vector, |avma| word(memory, avma))?;
            reader.has_threads_at(location, memory).then_some(location)
        })?;
        let thread = &self.layout.thread;
        let number = |number: u64| u16::try_from(number).ok();
        let fields = reader.carried_fields()?;
        Some(RuntimeBlock::of_java(&JavaLayout {
            thread_kind: variable.kind as u64,
            thread_offset: variable.offset,
            thread_module: variable.module,
            state: number(thread.running.at)?,
            state_java: number(thread.running_numbers.java)?,
            state_machine: number(thread.running_numbers.machine)?,
            object: number(thread.object.at)?,
            running: number(running.at)?,
            parent: number(self.layout.class.parent.at)?,
            ..fields
        }))
    }
}

impl JavaReader<'_> {
    /// Whether threads have their structures in a variable.
    fn has_threads_at(&self, variable: TlsLocation, memory: &dyn TargetMemory) -> bool {
        let threads = self.thread_reader();
        let structures = threads.thread_structures().unwrap_or_default();
        let has_it = |structure: &u64| {
            let pointer = threads.pointer(*structure)?;
            let at = variable.variable(pointer, |avma| word(memory, avma)).ok()??;
            Some(word(memory, at)? == *structure)
        };
        let found: Option<Vec<bool>> = structures.iter().take(THREADS_MAX).map(has_it).collect();
        found.is_some_and(|found| found.len() >= THREADS_MIN && found.iter().all(|it| *it))
    }

    /// Returns the layout of objects, as one of the threads has it.
    fn carried_fields(&self) -> Option<JavaLayout> {
        let threads = self.thread_reader();
        let structures = threads.thread_structures()?;
        let mut objects = structures.into_iter().filter_map(|it| threads.object_of(it));
        objects.find_map(|object| {
            let fields = ThreadFields::of(&threads.objects, threads.known_fields, object)?;
            layout_of(&threads.objects, object, fields)
        })
    }
}

/// Returns the layout of objects, given a thread's object with a name.
fn layout_of(
    objects: &JavaObjectReader<'_>,
    object: u64,
    fields: ThreadFields,
) -> Option<JavaLayout> {
    let shape = objects.shape;
    if shape.class_in_mark.is_some() || shape.is_coloured {
        return None;
    }
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
        reserved: [0],
    })
}

//! The virtual thread that a thread of a HotSpot machine carries, from 21 on: its name, or its
//! number if it has no name.
//!
//! The machine's structure of a thread has a handle of the thread's own object, and one of the
//! object of the thread whose code it runs. They differ while it carries a virtual thread.
//!
//! # What makes the reads right
//! Collectors move objects. One that stops the threads to do so waits for each thread that is in
//! Java's code or in the machine's own. While such a thread is in its handler, no object moves, so
//! what its structure refers to is there. In other states nothing is read. A machine has no layout
//! if its collector moves objects beside the threads.
//!
//! # Invariants
//! - A structure is taken for that of a thread of Java only if its own object refers back to it. So
//!   the machine's other threads have no name here, whatever their structures hold.
//! - An object is taken for a virtual thread only if its class extends that of threads, and for a
//!   name only if it is a string.
//! - At most `PARENTS_MAX` classes are looked at, and at most `TASK_NAME_MAX` bytes of a name.

use super::WordReader;
use super::task::{NamelessTask, TASK_CUT, TASK_NAME_MAX, TASK_VIRTUAL, write};
use crate::context::TlsLocation;
use crate::sync::AtomicU64;

/// Maximum number of classes from that of a virtual thread to that of threads.
const PARENTS_MAX: usize = 4;
/// The value of [`JavaLayout::reference_shift`] and [`JavaLayout::class_shift`] for references of
/// eight bytes.
pub const WIDE: u16 = u16::MAX;

/// The places of what is read in one machine's structures and objects. Offsets are in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JavaLayout {
    /// [`RecordKind`](crate::context::RecordKind) of the variable with the machine's structure of
    /// the thread.
    pub thread_kind: u64,
    /// Offset of that variable: see [`TlsLocation`].
    pub thread_offset: u64,
    /// Module of that variable: see [`TlsLocation`].
    pub thread_module: u64,
    /// Address of the class of threads (AVMA).
    pub thread_class: u64,
    /// Address of the class of strings (AVMA).
    pub string_class: u64,
    /// Base of references to objects of four bytes.
    pub reference_base: u64,
    /// Base of references to classes of four bytes.
    pub class_base: u64,
    /// Shift of references to objects of four bytes, or [`WIDE`].
    pub reference_shift: u16,
    /// Shift of references to classes of four bytes, or [`WIDE`].
    pub class_shift: u16,
    /// From a thread's structure to the number of its state, of four bytes.
    pub state: u16,
    /// The state of a thread in Java's code.
    pub state_java: u16,
    /// The state of a thread in the machine's own code.
    pub state_machine: u16,
    /// From a thread's structure to the handle of its object.
    pub object: u16,
    /// From a thread's structure to the handle of the object of the thread whose code it runs.
    pub running: u16,
    /// From an object to its class.
    pub class: u16,
    /// From a class to the one that it extends.
    pub parent: u16,
    /// From a thread's object to its name.
    pub name: u16,
    /// From a thread's object to its number, of eight bytes.
    pub number: u16,
    /// From a string to the array with its characters.
    pub characters: u16,
    /// From a string to the byte that is 1 if its characters have two bytes each.
    pub coder: u16,
    /// From an array to its length in bytes, of four bytes.
    pub array_len: u16,
    /// From an array to its first byte.
    pub array_start: u16,
    /// From the object of a thread that is not virtual to the address of its structure.
    pub structure: u16,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<JavaLayout>() == 7 * 8 + 16 * 2);

impl JavaLayout {
    /// Returns the way to the variable with the machine's structure of a thread.
    fn variable(&self) -> Option<TlsLocation> {
        TlsLocation::of(self.thread_kind, self.thread_offset, self.thread_module)
    }
}

/// The reads of one machine's structures and objects. `None` is for what is unreadable.
struct CarriedReader<'a, M> {
    layout: &'a JavaLayout,
    memory: &'a mut M,
}

impl<M: WordReader> CarriedReader<'_, M> {
    fn word(&mut self, avma: u64) -> Option<u64> {
        if avma & 7 == 0 { self.memory.load(avma) } else { None }
    }

    fn field(&mut self, base: u64, offset: u16) -> Option<u64> {
        self.word(base.wrapping_add(u64::from(offset)))
    }

    /// Loads four bytes of something that is aligned to eight.
    fn half(&mut self, base: u64, offset: u16) -> Option<u32> {
        let word = self.field(base, offset & !7)?;
        Some(word.wrapping_shr(u32::from(offset & 4).wrapping_mul(8)) as u32)
    }

    /// Loads a reference, or 0.
    fn reference(&mut self, object: u64, offset: u16, (base, shift): (u64, u16)) -> Option<u64> {
        if shift == WIDE {
            return self.field(object, offset);
        }
        match u64::from(self.half(object, offset)?) {
            0 => Some(0),
            narrow => Some(base.wrapping_add(narrow.wrapping_shl(u32::from(shift)))),
        }
    }

    fn object_in(&mut self, object: u64, offset: u16) -> Option<u64> {
        let JavaLayout { reference_base, reference_shift, .. } = *self.layout;
        self.reference(object, offset, (reference_base, reference_shift))
    }

    fn class_of(&mut self, object: u64) -> Option<u64> {
        let JavaLayout { class_base, class_shift, class, .. } = *self.layout;
        self.reference(object, class, (class_base, class_shift))
    }

    /// Returns the machine's structure of the thread, or 0.
    fn thread(&mut self, pointer: u64) -> Option<u64> {
        let way = self.layout.variable()?;
        let variable = way.variable(pointer, |avma| self.memory.load(avma)).ok()?;
        variable.map_or(Some(0), |variable| self.word(variable))
    }

    /// Returns the own object of a thread, given by its structure, and that of the thread whose
    /// code it runs, if that is another one.
    fn carried(&mut self, thread: u64) -> Option<(u64, u64)> {
        let JavaLayout { object, running, .. } = *self.layout;
        let [own, running] = [object, running].map(|at| {
            let handle = self.field(thread, at)?;
            self.word(handle).filter(|object| *object != 0)
        });
        let (own, running) = (own?, running?);
        (own != running).then_some((own, running))
    }

    /// Whether an object is that of the thread with this structure.
    fn is_own(&mut self, object: u64, thread: u64) -> bool {
        let structure = self.layout.structure;
        self.is_thread(object) == Some(true) && self.field(object, structure) == Some(thread)
    }

    /// Whether an object is that of a thread.
    fn is_thread(&mut self, object: u64) -> Option<bool> {
        let mut class = self.class_of(object)?;
        for _ in 0..PARENTS_MAX {
            if class == self.layout.thread_class {
                return Some(true);
            }
            class = self.field(class, self.layout.parent).filter(|class| *class != 0)?;
        }
        Some(false)
    }

    /// Writes the name of a thread's object, or its number, and returns the number of words.
    fn write_name(&mut self, object: u64, words: &[AtomicU64]) -> Option<usize> {
        let JavaLayout { name, number, characters, coder, .. } = *self.layout;
        let string = self.object_in(object, name)?;
        if string != 0 && self.class_of(string)? != self.layout.string_class {
            return None;
        }
        let array = if string == 0 { 0 } else { self.object_in(string, characters)? };
        let len = if array == 0 { 0 } else { self.half(array, self.layout.array_len)? as usize };
        if len == 0 {
            let number = self.field(object, number)?;
            return write(words, TASK_VIRTUAL, 8, |_| Some(number));
        }
        let shift = u32::from(coder & 3).wrapping_shl(3);
        let width = match self.half(string, coder & !3)?.wrapping_shr(shift) as u8 {
            0 => 1,
            1 => 2,
            _ => return None,
        };
        let kind = TASK_VIRTUAL | width | if len > TASK_NAME_MAX { TASK_CUT } else { 0 };
        let start = array.wrapping_add(u64::from(self.layout.array_start));
        let len = len.min(TASK_NAME_MAX);
        write(words, kind, len, |at| {
            self.unaligned(start.wrapping_add(at as u64), len.saturating_sub(at))
        })
    }

    /// Loads eight bytes at a multiple of four, at least `len` of which are wanted.
    fn unaligned(&mut self, avma: u64, len: usize) -> Option<u64> {
        let first = self.word(avma & !7)?;
        if avma & 4 == 0 {
            return Some(first);
        }
        if len <= 4 {
            // The last bytes of an object may be the last ones of the memory.
            return Some(first >> 32);
        }
        let second = self.word((avma & !7).wrapping_add(8))?;
        Some(first >> 32 | second << 32)
    }
}

/// Writes the name of the virtual thread that a thread carries, and returns the number of words: 0
/// if it carries none. The words are those of the name of a task: see
/// [`task`](super::task). It is an error if the thread may carry one whose name is unreadable, or
/// may not be read now.
///
/// The caller is that thread, in a signal handler.
pub(super) fn carried_name(
    layout: &JavaLayout,
    pointer: u64,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Result<usize, NamelessTask> {
    let mut reader = CarriedReader { layout, memory };
    let Some(thread) = reader.thread(pointer).filter(|thread| *thread != 0) else { return Ok(0) };
    // The handles themselves do not move.
    let Some((own, object)) = reader.carried(thread) else { return Ok(0) };
    let is_still = reader.half(thread, layout.state).is_some_and(|state| {
        state == u32::from(layout.state_java) || state == u32::from(layout.state_machine)
    });
    if !is_still {
        return Err(NamelessTask);
    }
    if !reader.is_own(own, thread) || reader.is_thread(object) != Some(true) {
        return Ok(0);
    }
    reader.write_name(object, words).ok_or(NamelessTask)
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::collections::HashMap;
    use std::vec::Vec;

    use super::*;
    use crate::runtime::TASK_WORDS;
    use crate::sync::Ordering;

    const POINTER: u64 = 0x7000;
    const THREAD: u64 = 0x8000;
    const THREAD_CLASS: u64 = 0x9000;
    const STRING_CLASS: u64 = 0x9100;
    const VIRTUAL_CLASS: u64 = 0x9200;
    const OBJECT: u64 = 0xa000;
    const STRING: u64 = 0xb000;
    const ARRAY: u64 = 0xc000;

    const LAYOUT: JavaLayout = JavaLayout {
        thread_kind: crate::context::RecordKind::Offset as u64,
        thread_offset: 16u64.wrapping_neg(),
        thread_module: 0,
        thread_class: THREAD_CLASS,
        string_class: STRING_CLASS,
        reference_base: 0,
        class_base: 0,
        reference_shift: WIDE,
        class_shift: WIDE,
        state: 4,
        state_java: 8,
        state_machine: 6,
        object: 8,
        running: 16,
        class: 8,
        parent: 24,
        name: 16,
        number: 32,
        characters: 16,
        coder: 29,
        array_len: 12,
        array_start: 20,
        structure: 40,
    };

    struct Words(HashMap<u64, u64>);

    impl WordReader for Words {
        fn load(&mut self, avma: u64) -> Option<u64> {
            self.0.get(&avma).copied()
        }
    }

    /// A thread that carries a virtual one with a name of these bytes, at an odd number of halves.
    fn words(name: &[u8]) -> Words {
        let mut words = HashMap::from([
            (POINTER - 16, THREAD),
            (THREAD, 8 << 32),
            (THREAD + 8, 0x100),
            (0x100, OBJECT - 0x800),
            (THREAD + 16, 0x200),
            (0x200, OBJECT),
            (OBJECT - 0x800 + 8, THREAD_CLASS),
            (OBJECT - 0x800 + 40, THREAD),
            (OBJECT + 8, VIRTUAL_CLASS),
            (OBJECT + 16, STRING),
            (OBJECT + 32, 77),
            (VIRTUAL_CLASS + 24, THREAD_CLASS),
            (STRING + 8, STRING_CLASS),
            (STRING + 16, ARRAY),
            (STRING + 24, 0),
            (ARRAY + 8, (name.len() as u64) << 32),
        ]);
        let mut bytes = [&[0; 4][..], name].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0xee);
        for (at, word) in (ARRAY + 16..).step_by(8).zip(bytes.as_chunks::<8>().0) {
            words.insert(at, u64::from_le_bytes(*word));
        }
        Words(words)
    }

    /// Returns the kind and the bytes of the captured name.
    fn name_of(
        layout: &JavaLayout,
        mut memory: Words,
    ) -> Result<Option<(u64, Vec<u8>)>, NamelessTask> {
        let words: Vec<AtomicU64> = (0..TASK_WORDS).map(|_| AtomicU64::new(u64::MAX)).collect();
        let used = carried_name(layout, POINTER, &mut memory, &words)?;
        let mut words = words[..used].iter().map(|word| word.load(Ordering::Relaxed));
        let Some(len) = words.next() else { return Ok(None) };
        let kind = words.next().unwrap_or_default();
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let (name, rest) = bytes.split_at(len as usize - 8);
        assert!(rest.iter().all(|byte| *byte == 0));
        Ok(Some((kind, name.to_vec())))
    }

    /// Returns the name of a thread after a word has changed, or is unreadable.
    fn with(at: u64, word: Option<u64>) -> Result<Option<(u64, Vec<u8>)>, NamelessTask> {
        let mut memory = words(b"a name");
        match word {
            Some(word) => memory.0.insert(at, word),
            None => memory.0.remove(&at),
        };
        name_of(&LAYOUT, memory)
    }

    #[test]
    fn names_are_characters_or_the_number() {
        let named = |kind, name: &[u8]| Ok(Some((TASK_VIRTUAL | kind, name.to_vec())));
        let number = named(0, &77u64.to_le_bytes());
        assert_eq!(name_of(&LAYOUT, words(b"a name of 16 b.")), named(1, b"a name of 16 b."));
        assert_eq!(name_of(&LAYOUT, words(b"")), number);
        assert_eq!(with(OBJECT + 16, Some(0)), number, "no string");
        assert_eq!(with(STRING + 24, Some(1 << 40)), named(2, b"a name"));
        let long = [b'x'; 300];
        assert_eq!(name_of(&LAYOUT, words(&long)), named(1 | TASK_CUT, &long[..TASK_NAME_MAX]));
    }

    #[test]
    fn references_of_four_bytes_have_a_base() {
        let layout = JavaLayout {
            reference_base: 0x1000,
            reference_shift: 3,
            class_base: 0x2000,
            class_shift: 4,
            ..LAYOUT
        };
        let mut memory = words(b"a name");
        let narrow = |avma: u64, base: u64, shift: u32| (avma - base) >> shift;
        memory.0.insert(OBJECT + 8, narrow(VIRTUAL_CLASS, 0x2000, 4) | 7 << 32);
        memory.0.insert(OBJECT - 0x800 + 8, narrow(THREAD_CLASS, 0x2000, 4) | 7 << 32);
        memory.0.insert(OBJECT + 16, narrow(STRING, 0x1000, 3) | 7 << 32);
        memory.0.insert(STRING + 8, narrow(STRING_CLASS, 0x2000, 4));
        memory.0.insert(STRING + 16, narrow(ARRAY, 0x1000, 3));
        assert_eq!(name_of(&layout, memory), Ok(Some((TASK_VIRTUAL | 1, b"a name".to_vec()))));
    }

    #[test]
    fn nothing_is_read_where_objects_may_move() {
        for (state, is_read) in [(8, true), (6, true), (4, false), (10, false), (5, false)] {
            let found = with(THREAD, Some(state << 32));
            assert_eq!(found.is_err(), !is_read, "state {state}");
            assert_eq!(matches!(found, Ok(Some(_))), is_read, "state {state}");
        }
    }

    #[test]
    fn others_have_no_name() {
        assert_eq!(with(POINTER - 16, Some(0)), Ok(None), "no thread of the machine");
        assert_eq!(with(0x200, Some(OBJECT - 0x800)), Ok(None), "its own code");
        assert_eq!(with(0x200, Some(0)), Ok(None));
        assert_eq!(with(OBJECT - 0x800 + 40, Some(THREAD + 8)), Ok(None), "another's object");
        assert_eq!(with(OBJECT - 0x800 + 40, None), Ok(None), "unreadable");
        assert_eq!(with(OBJECT - 0x800 + 8, Some(STRING_CLASS)), Ok(None), "no thread's object");
        assert_eq!(with(OBJECT + 8, Some(STRING_CLASS)), Ok(None), "no thread");
        assert_eq!(with(VIRTUAL_CLASS + 24, Some(VIRTUAL_CLASS)), Ok(None), "classes in a circle");
        assert_eq!(with(STRING + 8, Some(THREAD_CLASS)), Err(NamelessTask), "no string");
        assert_eq!(with(STRING + 24, Some(2 << 40)), Err(NamelessTask), "another coder");
        assert_eq!(with(ARRAY + 16, None), Err(NamelessTask), "unreadable");
        assert_eq!(with(ARRAY + 24, None), Err(NamelessTask), "unreadable end");
        for wild in [1, 4, u64::MAX - 7, u64::MAX] {
            for at in [POINTER - 16, THREAD + 8, THREAD + 16, 0x200, OBJECT + 8] {
                assert_eq!(with(at, Some(wild)), Ok(None), "{wild:x} at {at:x}");
            }
            for at in [OBJECT + 16, STRING + 16] {
                assert_eq!(with(at, Some(wild)), Err(NamelessTask), "{wild:x} at {at:x}");
            }
        }
        assert_eq!(name_of(&JavaLayout { thread_kind: 9, ..LAYOUT }, words(b"a")), Ok(None));
    }
}

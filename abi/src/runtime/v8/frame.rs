//! The function of a frame on the thread's stack.
//!
//! # Invariants
//! - Objects move and their memory is used again while a collector runs, so every slot may hold
//!   anything. What is not the expected type has no function.

use super::layout::{V8Layout, object_of};
use crate::runtime::WordReader;
use crate::runtime::word::FrameFunction;

/// The lowest address that an object can have, and one past the highest.
const OBJECTS: core::ops::Range<u64> = 4096..1 << 47;

/// The slots of a frame that tell its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSlots {
    /// The function.
    pub function: u64,
    /// The bytecodes of an interpreted function.
    pub bytecodes: u64,
    /// The offset of the bytecode, which is a small integer in an interpreted function.
    pub offset: u64,
}

/// The slot of the function holds none, or it is unreadable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoFunction;

/// Returns the function of a frame whose context is a reference. The caller ensures that.
pub fn function(
    layout: &V8Layout,
    slots: FrameSlots,
    memory: &mut impl WordReader,
) -> Result<FrameFunction, NoFunction> {
    let (object, cookie) = shared(layout, slots.function, memory).ok_or(NoFunction)?;
    let is_number = slots.offset as u32 == 0;
    let is_interpreted =
        is_number && layout.instance_type(slots.bytecodes, memory) == Some(layout.bytecodes_type);
    let position =
        if is_interpreted { (slots.offset >> 32) as u32 } else { FrameFunction::NOWHERE };
    Ok(FrameFunction { object, position, cookie })
}

/// Returns the address of what a function shares with its other instances, and its cookie.
fn shared(layout: &V8Layout, slot: u64, memory: &mut impl WordReader) -> Option<(u64, u32)> {
    let kind = layout.instance_type(slot, memory)?;
    if !(layout.function_first..=layout.function_last).contains(&kind) {
        return None;
    }
    let shared = object_of(layout.field(object_of(slot)?, layout.function_shared, memory)?)?;
    if !OBJECTS.contains(&shared) {
        return None;
    }
    Some((shared, layout.cookie(shared, memory)?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::collections::HashMap;

    use super::*;
    use crate::runtime::v8::ABSENT;

    const LAYOUT: V8Layout = V8Layout {
        function_first: 0x810,
        function_last: 0x81f,
        shared_type: 0x120,
        bytecodes_type: 0xba,
        map_instance_type: 12,
        function_shared: 32,
        shared_script: 40,
        shared_literal: 60,
        shared_unique: 64,
        script_id: 64,
        reserved: [0; 2],
    };
    const FUNCTION: u64 = 0x1000_0000;
    const BYTECODES: u64 = 0x2000_0000;
    const SHARED: u64 = 0x3000_0000;
    const MAP: u64 = 0x4000_0000;
    const OTHER_MAP: u64 = 0x5000_0000;
    const SCRIPT: u64 = 0x6000_0000;

    struct HeapWords(HashMap<u64, u64>);

    impl WordReader for HeapWords {
        fn load(&mut self, avma: u64) -> Option<u64> {
            self.0.get(&avma).copied()
        }
    }

    fn heap() -> HashMap<u64, u64> {
        HashMap::from([
            (FUNCTION, MAP + 1),
            (MAP + 8, 0x815 << 32 | 7),
            (FUNCTION + 32, SHARED + 1),
            (SHARED + 40, SCRIPT + 1),
            (SCRIPT + 64, 5 << 32),
            (SHARED + 56, 17 << 32),
            (SHARED + 64, 0xffff_0000_0000_002a),
            (BYTECODES, OTHER_MAP + 1),
            (OTHER_MAP + 8, 0xba << 32),
        ])
    }

    const SLOTS: FrameSlots =
        FrameSlots { function: FUNCTION + 1, bytecodes: BYTECODES + 1, offset: 90 << 32 };

    #[test]
    fn an_interpreted_frame_has_a_function_and_an_offset() {
        let mut words = HeapWords(heap());
        let expected = FrameFunction { object: SHARED, position: 90, cookie: 42 };
        assert_eq!(function(&LAYOUT, SLOTS, &mut words), Ok(expected));
        // Compiled code keeps other values there.
        let nowhere = FrameFunction { position: FrameFunction::NOWHERE, ..expected };
        let others = [
            FrameSlots { offset: SHARED + 1, ..SLOTS },
            FrameSlots { bytecodes: FUNCTION + 1, ..SLOTS },
            FrameSlots { bytecodes: 90 << 32, ..SLOTS },
            FrameSlots { bytecodes: 0x7777_0001, ..SLOTS },
        ];
        for slots in others {
            assert_eq!(function(&LAYOUT, slots, &mut words), Ok(nowhere), "{slots:x?}");
        }
    }

    #[test]
    fn without_unique_numbers_the_script_and_the_literal_tell_functions_apart() {
        let old = V8Layout { shared_unique: ABSENT, ..LAYOUT };
        let cookie = |heap: HashMap<u64, u64>| {
            function(&old, SLOTS, &mut HeapWords(heap)).map(|it| it.cookie)
        };
        let first = cookie(heap()).unwrap();
        let with = |at: u64, word: u64| {
            let mut heap = heap();
            heap.insert(at, word);
            cookie(heap)
        };
        assert_eq!(with(SHARED + 64, 0), Ok(first));
        assert!(with(SCRIPT + 64, 6 << 32).is_ok_and(|it| it != first), "another script");
        assert_eq!(with(SHARED + 40, 8), Err(NoFunction), "no script");
        assert!(with(SHARED + 56, 18 << 32).is_ok_and(|it| it != first), "another literal");
    }

    #[test]
    fn slots_that_hold_no_function_have_none() {
        let refused = |at: u64, word: Option<u64>| {
            let mut heap = heap();
            match word {
                Some(word) => heap.insert(at, word),
                None => heap.remove(&at),
            };
            assert_eq!(function(&LAYOUT, SLOTS, &mut HeapWords(heap)), Err(NoFunction), "{at:x}");
        };
        refused(FUNCTION, Some(SHARED) /* the collector has moved it */);
        refused(MAP + 8, Some(0x820 << 32));
        refused(MAP + 8, Some(0x80f << 32));
        refused(MAP + 8, None);
        refused(FUNCTION + 32, Some(8));
        refused(FUNCTION + 32, Some(9));
        refused(FUNCTION + 32, Some(1 << 47 | 1));
        refused(FUNCTION + 32, None);
        refused(SHARED + 64, None);
        for slot in [0, 1, 2, 3, u64::MAX, FUNCTION, FUNCTION + 3] {
            let slots = FrameSlots { function: slot, ..SLOTS };
            assert_eq!(
                function(&LAYOUT, slots, &mut HeapWords(heap())),
                Err(NoFunction),
                "{slot:x}"
            );
        }
    }
}

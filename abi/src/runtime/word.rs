//! Frame words of managed frames, which follow the program counters of a stack.
//!
//! Bits 60 to 62 of a program counter are all 0 (user code) or all 1 (kernel code). In the words of
//! this module they are 010, and bits 56 to 59 tell the kind of the word.
//!
//! | word | bits 48 to 55 | bits 0 to 47 |
//! |---|---|---|
//! | header of a section | number of the runtime's block | [`SectionEnd`] << 32, number of frames |
//! | frame | [`ENTRY`], [`FOREIGN`], [`EMPTY`], [`UNPROVEN`] | address of the code object |
//! | frame in place | number of the runtime's block, or [`JAVA`] | address of the code object |
//! | function | 0 | address of what the function shares with its other instances |
//!
//! A section is a header and its frames, leaf first. After the word of a frame comes another word
//! with any value: the position in the code << 32, and the cookie. A frame in place is among the
//! program counters and stands for one of them: the frame of an interpreter that keeps its frames
//! on the thread's stack. Its other word is what the frame and a register say about the position.
//! A function follows a program counter: the frame of that code has it in a slot. Its other word is
//! that of a frame.

/// The value of bits 60 to 62.
const MARK: u64 = 0b010 << 60;
const MARK_MASK: u64 = 0b111 << 60;
const KIND_SHIFT: u32 = 56;
const KIND_MASK: u64 = 0xf << KIND_SHIFT;
const SECTION: u64 = 1 << KIND_SHIFT;
const FRAME: u64 = 2 << KIND_SHIFT;
const IN_PLACE: u64 = 3 << KIND_SHIFT;
const FUNCTION: u64 = 4 << KIND_SHIFT;
const DETAIL_SHIFT: u32 = 48;
const ADDRESS_MASK: u64 = (1 << DETAIL_SHIFT) - 1;
const END_SHIFT: u32 = 32;

/// The flag of a frame whose caller is native code, or that is the last frame.
pub const ENTRY: u8 = 1;
/// The flag of a frame whose object is not of the expected type: it has no name.
pub const FOREIGN: u8 = 2;
/// The flag of what takes the place of a frame that has ended while its call has not: native code
/// frees what the frame used. Only the call is left of it, which is an [`ENTRY`].
pub const EMPTY: u8 = 4;
/// The flag of a frame that may be another thread's.
pub const UNPROVEN: u8 = 8;

/// What frames in place have for the number of a runtime's block if they are those of the Java
/// machine, of which a process has one at most. It has no block.
pub const JAVA: u8 = u8::MAX;

/// Number of words of a frame.
pub const FRAME_WORDS: usize = 2;

/// Whether a frame word is not a program counter.
pub fn is_managed(word: u64) -> bool {
    word & MARK_MASK == MARK
}

/// Returns a program counter that is not mistaken for a word of this module. A damaged stack may
/// hold any number.
pub fn as_pc(pc: u64) -> u64 {
    if is_managed(pc) { pc & !MARK_MASK } else { pc }
}

/// The page of the user mode's code that has an address of the kernel.
const VSYSCALL: core::ops::Range<u64> = 0x7fff_ffff_ff60_0000..0x7fff_ffff_ff60_1000;
/// The bit of a program counter that frame words use for a mark.
const TOP: u64 = 1 << 63;

/// A frame of the kernel whose function is hidden from this user. The highest page has no code.
pub const KERNEL_NAMELESS: u64 = 0x7fff_ffff_ffff_f000;

/// Returns a frame word of the kernel that stands for a function with this number, without an
/// address. No address of the kernel's code has bits 48 to 59 clear.
pub fn kernel_function(number: u64) -> u64 {
    MARK_MASK | number & ADDRESS_MASK
}

/// Whether a frame word is a program counter in the kernel.
pub fn is_kernel(word: u64) -> bool {
    word & MARK_MASK == MARK_MASK && !VSYSCALL.contains(&(word & !TOP))
}

/// Splits the words of a stack into those of the kernel, which are innermost, and the others.
pub fn split_kernel(words: &[u64]) -> (&[u64], &[u64]) {
    let count = words.iter().take_while(|word| is_kernel(**word)).count();
    words.split_at(count)
}

/// The reason why a section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SectionEnd {
    /// It has all frames of the thread.
    Root = 0,
    /// The thread has more frames than there is room for, or its list of frames is a circle.
    Depth = 1,
    /// The next frame was unreadable.
    Unreadable = 2,
    /// The list ended where a list cannot end: the interpreter was about to link a frame. Or a list
    /// of the thread's frames is missing.
    Unlinked = 3,
    /// It has all frames of the thread, unless code of another interpreter of the process runs on
    /// it: then the innermost frames may be missing.
    Outer = 4,
}

impl SectionEnd {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Root, Self::Depth, Self::Unreadable, Self::Unlinked, Self::Outer];
}

/// A section of managed frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section<'a> {
    /// Number of the runtime's block.
    pub runtime: u8,
    /// Why it ended.
    pub end: SectionEnd,
    words: &'a [u64],
}

/// A managed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManagedFrame {
    /// Address of the code object (AVMA).
    pub object: u64,
    /// [`ENTRY`], [`FOREIGN`], [`EMPTY`] and [`UNPROVEN`].
    pub flags: u8,
    /// The position in the code, in a unit of the runtime.
    pub position: u32,
    /// A number that changes when another object takes the address.
    pub cookie: u32,
}

/// Returns the header of a section.
pub fn header(runtime: usize, end: SectionEnd, frames: usize) -> u64 {
    let runtime = u64::from(runtime as u8) << DETAIL_SHIFT;
    MARK | SECTION | runtime | (end as u64) << END_SHIFT | u64::from(frames as u32)
}

impl ManagedFrame {
    /// [`ENTRY`] in the frame's first word.
    pub const ENTRY_WORD: u64 = (ENTRY as u64) << DETAIL_SHIFT;

    /// A frame without an object.
    pub const NONE: Self = Self { object: 0, flags: 0, position: 0, cookie: 0 };

    /// Whether the frame has a function with a name.
    pub fn is_named(&self) -> bool {
        self.flags & (FOREIGN | EMPTY) == 0
    }

    /// Returns the frame's words.
    pub fn words(&self) -> [u64; FRAME_WORDS] {
        let flags = u64::from(self.flags) << DETAIL_SHIFT;
        let first = MARK | FRAME | flags | self.object & ADDRESS_MASK;
        [first, u64::from(self.position) << 32 | u64::from(self.cookie)]
    }

    fn of_words([first, second]: [u64; FRAME_WORDS]) -> Option<Self> {
        let is_frame = is_managed(first) && first & KIND_MASK == FRAME;
        is_frame.then_some(Self {
            object: first & ADDRESS_MASK,
            flags: (first >> DETAIL_SHIFT) as u8,
            position: (second >> 32) as u32,
            cookie: second as u32,
        })
    }
}

impl<'a> Section<'a> {
    /// Returns the frames, leaf first, up to the first word that is not a frame.
    pub fn frames(&self) -> impl Iterator<Item = ManagedFrame> + use<'a> {
        let (frames, _) = self.words.as_chunks::<FRAME_WORDS>();
        frames.iter().map_while(|words| ManagedFrame::of_words(*words))
    }
}

/// A frame of a stack before its sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameWord {
    /// A program counter.
    Pc(u64),
    /// A managed frame in place.
    InPlace {
        /// Number of the runtime's block.
        runtime: u8,
        /// The frame.
        frame: FrameInPlace,
    },
    /// A program counter, and the function that the frame has in a slot.
    WithFunction(u64, FrameFunction),
}

/// The function of a frame, as a slot of the frame and the function's objects have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameFunction {
    /// Address of what the function shares with its other instances (AVMA).
    pub object: u64,
    /// The position in its code, in a unit of the runtime, or [`Self::NOWHERE`]. It may be left
    /// over from other code of the function that had the frame before.
    pub position: u32,
    /// A number that changes when another object takes the address.
    pub cookie: u32,
}

impl FrameFunction {
    /// The frame has no position.
    pub const NOWHERE: u32 = u32::MAX;
    /// The frame is that of a function, but its slot has none that can be read.
    pub const UNREADABLE: Self = Self { object: 0, position: Self::NOWHERE, cookie: 0 };

    /// Returns the function's words, which follow the program counter.
    pub fn words(&self) -> [u64; FRAME_WORDS] {
        let second = u64::from(self.position) << 32 | u64::from(self.cookie);
        [MARK | FUNCTION | self.object & ADDRESS_MASK, second]
    }

    fn of_words([first, second]: [u64; FRAME_WORDS]) -> Option<Self> {
        is_function(first).then_some(Self {
            object: first & ADDRESS_MASK,
            position: (second >> 32) as u32,
            cookie: second as u32,
        })
    }
}

/// A frame of an interpreter that keeps its frames on the thread's stack, as the stack and the
/// registers have it: nothing was read of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameInPlace {
    /// Address of the code object (AVMA).
    pub object: u64,
    /// Address of the position in the code, as the frame has saved it; 0 before the first
    /// instruction, and in functions without code. It may be anything.
    pub saved: u64,
    /// The distance from there to what the register of the position holds, if that is near. The
    /// register is newer, but may belong to a frame that has just ended. 0 if it is not known.
    pub ahead: i16,
}

impl FrameInPlace {
    /// Returns the addresses at which the position may be, the likelier one first.
    pub fn positions(&self) -> [u64; 2] {
        [self.saved.wrapping_add_signed(i64::from(self.ahead)), self.saved]
    }

    /// Returns the frame's words.
    pub fn words(&self, runtime: u8) -> [u64; FRAME_WORDS] {
        let runtime = u64::from(runtime) << DETAIL_SHIFT;
        let ahead = u64::from(self.ahead as u16) << DETAIL_SHIFT;
        // Addresses of user code have 47 bits, so the word is none that was never written.
        let saved = self.saved & ADDRESS_MASK >> 1;
        [MARK | IN_PLACE | runtime | self.object & ADDRESS_MASK, ahead | saved]
    }

    fn of_words([first, second]: [u64; FRAME_WORDS]) -> FrameWord {
        FrameWord::InPlace {
            runtime: (first >> DETAIL_SHIFT) as u8,
            frame: Self {
                object: first & ADDRESS_MASK,
                saved: second & ADDRESS_MASK,
                ahead: (second >> DETAIL_SHIFT) as i16,
            },
        }
    }
}

fn is_in_place(word: u64) -> bool {
    is_managed(word) && word & KIND_MASK == IN_PLACE
}

fn is_function(word: u64) -> bool {
    is_managed(word) && word & KIND_MASK == FUNCTION
}

/// Returns the number of words that a word before the sections begins.
fn len_from(word: u64) -> usize {
    if is_in_place(word) || is_function(word) { FRAME_WORDS } else { 1 }
}

/// Splits the words of a stack into its program counters, with what is among them, and its
/// sections.
pub fn split(words: &[u64]) -> (&[u64], &[u64]) {
    let mut at = 0usize;
    while let Some(word) = words.get(at) {
        let len = len_from(*word);
        let is_section = is_managed(*word) && len == 1;
        if is_section {
            break;
        }
        at = at.wrapping_add(len);
    }
    words.split_at(at.min(words.len()))
}

/// Returns the frames before the sections, leaf first, each with the index of its first word, up to
/// the first word that is not of one.
pub fn indexed_frames(words: &[u64]) -> impl Iterator<Item = (usize, FrameWord)> {
    let mut rest = words;
    core::iter::from_fn(move || {
        let index = words.len().wrapping_sub(rest.len());
        if let Some((pair, after)) = rest.split_first_chunk::<FRAME_WORDS>()
            && is_in_place(pair[0])
        {
            rest = after;
            return Some((index, FrameInPlace::of_words(*pair)));
        }
        let (pc, after) = rest.split_first().filter(|(word, _)| !is_managed(**word))?;
        rest = after;
        if let Some((pair, after)) = rest.split_first_chunk::<FRAME_WORDS>()
            && let Some(function) = FrameFunction::of_words(*pair)
        {
            rest = after;
            return Some((index, FrameWord::WithFunction(*pc, function)));
        }
        Some((index, FrameWord::Pc(*pc)))
    })
}

/// Returns the frames before the sections, leaf first, up to the first word that is not of one.
pub fn frames(words: &[u64]) -> impl Iterator<Item = FrameWord> {
    indexed_frames(words).map(|(_, frame)| frame)
}

/// Returns the program counters before the sections, leaf first, each with its index among the
/// words.
pub fn pcs(words: &[u64]) -> impl Iterator<Item = (usize, u64)> {
    indexed_frames(words).filter_map(|(index, frame)| match frame {
        FrameWord::Pc(pc) | FrameWord::WithFunction(pc, _) => Some((index, pc)),
        FrameWord::InPlace { .. } => None,
    })
}

/// Returns the words without the first half of a frame in place, or of a function, whose other half
/// was cut off.
pub fn whole_frames(words: &[u64]) -> &[u64] {
    let mut rest = words;
    let mut whole = 0usize;
    while let Some(word) = rest.first() {
        let len = len_from(*word);
        let Some(after) = rest.get(len..) else { break };
        rest = after;
        whole = whole.wrapping_add(len);
    }
    words.get(..whole).unwrap_or(words)
}

/// Returns the sections of the words of a stack, up to the first word that begins no section.
pub fn sections(words: &[u64]) -> impl Iterator<Item = Section<'_>> {
    let (_, mut rest) = split(words);
    core::iter::from_fn(move || {
        let (head, after) = rest.split_first()?;
        if !is_managed(*head) || head & KIND_MASK != SECTION {
            return None;
        }
        let frames = (*head as u32 as usize).saturating_mul(FRAME_WORDS).min(after.len());
        let (words, next) = after.split_at(frames);
        rest = next;
        let end = SectionEnd::ALL.get((head >> END_SHIFT & 0xff) as usize).copied()?;
        Some(Section { runtime: (head >> DETAIL_SHIFT) as u8, end, words })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    /// The mark of a return address.
    const RETURN_ADDRESS: u64 = 1 << 63;

    fn frame(object: u64, flags: u8) -> ManagedFrame {
        ManagedFrame { object, flags, position: u32::MAX - 1, cookie: 0x8000_0001 }
    }

    #[test]
    fn sections_follow_the_program_counters() {
        let pcs = [0x5555_0000_1234, 0x7fff_ffff_ffff | RETURN_ADDRESS, 0xffff_ffff_8100_0000];
        let one = [frame(0x7f00_0000_0010, ENTRY), frame((1 << 48) - 8, FOREIGN)];
        let other = [frame(8, 0)];
        let mut words = pcs.to_vec();
        words.push(header(0, SectionEnd::Depth, 2));
        words.extend(one.iter().flat_map(ManagedFrame::words));
        words.push(header(3, SectionEnd::Root, 1));
        words.extend(other.iter().flat_map(ManagedFrame::words));
        assert_eq!(split(&words).0, pcs);
        let found: Vec<_> = sections(&words).collect();
        let shape = found.iter().map(|it| (it.runtime, it.end, it.frames().collect::<Vec<_>>()));
        let expected =
            [(0, SectionEnd::Depth, one.to_vec()), (3, SectionEnd::Root, other.to_vec())];
        assert_eq!(shape.collect::<Vec<_>>(), expected);
        assert_eq!(sections(&pcs).count(), 0);
    }

    #[test]
    fn frames_in_place_are_among_the_program_counters() {
        // Its second word looks like a header.
        let ahead = (header(0, SectionEnd::Root, 0) >> 48) as i16;
        let managed = FrameInPlace { object: 0x7f00_0000_0040, saved: 0x7f00_0000_1008, ahead };
        let mut words = std::vec![0x5000, 0x6000 | RETURN_ADDRESS];
        words.extend(managed.words(3));
        words.push(0x7000 | RETURN_ADDRESS);
        let stack = words.len();
        words.push(header(0, SectionEnd::Root, 1));
        words.extend(frame(8, 0).words());
        assert_eq!(split(&words).0, &words[..stack]);
        assert_eq!(sections(&words).count(), 1);
        let expected = [
            FrameWord::Pc(0x5000),
            FrameWord::Pc(0x6000 | RETURN_ADDRESS),
            FrameWord::InPlace { runtime: 3, frame: managed },
            FrameWord::Pc(0x7000 | RETURN_ADDRESS),
        ];
        assert_eq!(frames(split(&words).0).collect::<Vec<_>>(), expected);
        // A pair that was cut off is no frame.
        assert_eq!(frames(&words[..3]).collect::<Vec<_>>(), expected[..2]);
        assert_eq!(split(&words[..3]).0, &words[..3]);
        let ends = [1, 2, 3, 4, 5].map(|end| whole_frames(&words[..end]).len());
        assert_eq!(ends, [1, 2, 2, 4, 5]);
        let expected = [(0, 0x5000), (1, 0x6000 | RETURN_ADDRESS), (4, 0x7000 | RETURN_ADDRESS)];
        assert_eq!(pcs(&words).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn functions_follow_their_program_counters() {
        // Its second word looks like a header.
        let position = (header(0, SectionEnd::Root, 0) >> 32) as u32;
        let function = FrameFunction { object: 0x7f00_0000_0040, position, cookie: 7 };
        let nowhere =
            FrameFunction { position: FrameFunction::NOWHERE, cookie: u32::MAX, ..function };
        let mut words = std::vec![0x5000];
        words.extend(function.words());
        words.push(0x6000 | RETURN_ADDRESS);
        words.push(0x7000 | RETURN_ADDRESS);
        words.extend(nowhere.words());
        let stack = words.len();
        words.push(header(0, SectionEnd::Root, 1));
        words.extend(frame(8, 0).words());
        assert_eq!((split(&words).0, sections(&words).count()), (&words[..stack], 1));
        let expected = [
            FrameWord::WithFunction(0x5000, function),
            FrameWord::Pc(0x6000 | RETURN_ADDRESS),
            FrameWord::WithFunction(0x7000 | RETURN_ADDRESS, nowhere),
        ];
        assert_eq!(frames(split(&words).0).collect::<Vec<_>>(), expected);
        let places: Vec<usize> = pcs(&words).map(|(index, _)| index).collect();
        assert_eq!(places, [0, 3, 4]);
        // A function that was cut off is none, nor is one without a program counter.
        assert_eq!(frames(&words[..6]).last(), Some(FrameWord::Pc(0x7000 | RETURN_ADDRESS)));
        let ends = [1, 2, 3, 4, 5, 6, 7].map(|end| whole_frames(&words[..end]).len());
        assert_eq!(ends, [1, 1, 3, 4, 5, 5, 7]);
        assert_eq!(frames(&words[1..]).count(), 0);
    }

    #[test]
    fn damaged_sections_end_early() {
        let whole = frame(0x10, ENTRY).words();
        let cut = [header(0, SectionEnd::Root, 5), whole[0], whole[1], whole[0]];
        let frames = |words: &[u64]| -> Vec<usize> {
            sections(words).map(|section| section.frames().count()).collect()
        };
        assert_eq!(frames(&cut), [1], "fewer words than it says");
        assert_eq!(frames(&[header(0, SectionEnd::Root, 1), 7, 7]), [0], "no frame");
        assert_eq!(frames(&[whole[0], whole[1]]), [] as [usize; 0], "no header");
        assert_eq!(frames(&[header(0, SectionEnd::Root, 0) | 0x77 << END_SHIFT]), [], "no reason");
        let endless = [header(0, SectionEnd::Root, u32::MAX as usize)];
        assert_eq!(frames(&endless), [0]);
    }

    #[test]
    fn frames_of_the_kernel_are_innermost() {
        let kernel = [0x7fff_ffff_8100_0000, 0xffff_ffff_8200_0001];
        let user = [0x5555_0000_1234, 0x7fff_ffff_ffff | RETURN_ADDRESS, kernel[0]];
        let words: Vec<u64> = kernel.iter().chain(&user).copied().collect();
        assert_eq!(split_kernel(&words), (&kernel[..], &user[..]));
        assert_eq!(split_kernel(&user), (&[][..], &user[..]));
        assert_eq!(split_kernel(&kernel), (&kernel[..], &[][..]));
        for word in [0, 1 << 47, RETURN_ADDRESS, 0x7fff_ffff_ff60_0400, 0xffff_ffff_ff60_0400] {
            assert!(!is_kernel(word), "{word:x}");
        }
        assert!(!is_kernel(frame(8, ENTRY).words()[0]) && is_kernel(kernel_function(7)));
        assert_ne!(kernel_function(7), kernel_function(8));
    }

    #[test]
    fn no_pc_is_mistaken_for_a_managed_word() {
        for pc in [0, 1 << 47, (1 << 57) - 1, RETURN_ADDRESS, 0xffff_8000_0000_0000, u64::MAX] {
            assert!(!is_managed(pc), "{pc:x}");
            assert_eq!(as_pc(pc), pc);
        }
        for wild in [header(0, SectionEnd::Root, 0), frame(0, 0).words()[0], MARK] {
            assert!(is_managed(wild) && !is_managed(as_pc(wild)), "{wild:x}");
        }
    }
}

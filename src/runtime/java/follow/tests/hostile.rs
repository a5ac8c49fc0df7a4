//! Code that no compiler makes.

use super::*;

const KINDS: [GeneratedKind; 12] = [
    GeneratedKind::Method,
    GeneratedKind::InterpreterEntry,
    GeneratedKind::Interpreter,
    GeneratedKind::MethodHandles,
    GeneratedKind::Adapter,
    GeneratedKind::VirtualCall,
    GeneratedKind::Stubs,
    GeneratedKind::RuntimeStub,
    GeneratedKind::FramedStub,
    GeneratedKind::Poll,
    GeneratedKind::Deoptimization,
    GeneratedKind::Exception,
];

/// Instructions that move the stack pointer or branch, each with its end chosen at random.
const PIECES: [&[u8]; 20] = [
    &[0x55],
    &[0x5d],
    &[0x5c],
    &[0x54],
    &[0x50],
    &[0xc3],
    &[0xc9],
    &[0x48, 0x8b, 0xec],
    &[0x48, 0x8b, 0xe5],
    &[0x49, 0x8b, 0xe4],
    &[0x4c, 0x8b, 0xe4],
    &[0x48, 0x83, 0xe4, 0xf0],
    &[0x48, 0x83, 0xec],
    &[0x48, 0x8d, 0x65],
    &[0x48, 0x89, 0x44, 0x24],
    &[0x48, 0x8b, 0x64, 0x24],
    &[0x74],
    &[0xeb],
    &[0xe8, 0x00, 0x00, 0x00],
    &[0x48, 0x81, 0xec, 0xff, 0xff, 0xff],
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Instructions with a displacement of four bytes, which is chosen at random. They move addresses
/// of the stack among registers and slots: `lea`, `mov` to and from memory, `add`, `sub`, `push`,
/// `je`.
const FAR_PIECES: [&[u8]; 17] = [
    &[0x48, 0x8d, 0xa4, 0x24],
    &[0x48, 0x8d, 0xac, 0x24],
    &[0x48, 0x8d, 0xad],
    &[0x48, 0x8d, 0xa5],
    &[0x48, 0x8d, 0x84, 0x24],
    &[0x48, 0x8d, 0x80],
    &[0x48, 0x8d, 0xa0],
    &[0x48, 0x8d, 0xa8],
    &[0x48, 0x89, 0x85],
    &[0x48, 0x89, 0xac, 0x24],
    &[0x48, 0x8b, 0xa0],
    &[0x48, 0x8b, 0xa4, 0x24],
    &[0x48, 0x81, 0xc4],
    &[0x48, 0x81, 0xec],
    &[0x48, 0x05],
    &[0xff, 0xb4, 0x24],
    &[0x0f, 0x84],
];

/// Displacements at the ends of what is followed, and of what there is.
const DISTANCES: [i32; 8] =
    [i32::MIN, i32::MAX, 1 << 24, -(1 << 24), (1 << 24) - 8, 1 << 30, -(1 << 30), -8];

fn code(random: &mut Random, len: usize, is_far: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        if is_far && !random.next().is_multiple_of(4) {
            let piece = FAR_PIECES[random.next() as usize % FAR_PIECES.len()];
            bytes.extend(piece);
            let far = DISTANCES[random.next() as usize % DISTANCES.len()];
            // A branch of this code stays in it.
            let near = random.next() as i32 % 200;
            bytes.extend(if piece == [0x0f, 0x84] { near } else { far }.to_le_bytes());
        } else {
            bytes.extend(PIECES[random.next() as usize % PIECES.len()]);
            bytes.push(random.next() as u8);
        }
    }
    bytes
}

#[test]
fn any_bytes_have_rules_in_ascending_order() {
    let mut random = Random(0x5EED);
    let (mut rules, mut cut) = (0, 0);
    for number in 0..8_000 {
        let len = random.next() as usize % 400;
        let bytes = match number % 3 {
            0 => (0..len).map(|_| random.next() as u8).collect(),
            rest => code(&mut random, len, rest == 2),
        };
        let offsets = [random.next() as u32 % 500, random.next() as u32, u32::MAX, 0];
        let followed = follow(&GeneratedCode {
            kind: KINDS[number % KINDS.len()],
            start: if number % 5 == 0 { u64::MAX - 100 } else { 0x7000_0000 },
            bytes: &bytes,
            frame_words: [0, 1, 6, u32::MAX][random.next() as usize % 4],
            frame_complete: Some(random.next() as u32 % 500).filter(|_| number % 2 == 0),
            entries: &offsets,
            deoptimized: Deoptimized { handlers: &offsets, original_words: -7 },
        });
        assert!(followed.rows.is_sorted_by(|one, other| one.0 < other.0), "{:x?}", followed.rows);
        assert!(followed.instructions <= bytes.len() && followed.unknown <= followed.instructions);
        rules += followed.rows.iter().filter(|(_, rule)| *rule != BAD).count();
        cut += usize::from(followed.is_cut);
    }
    assert!(rules > 10_000 && cut == 0, "{rules} rules, {cut} cut");
}

/// Every instruction branches to every other one, with another stack pointer.
#[test]
fn code_that_meets_everywhere_is_followed_in_bounded_time() {
    let mut bytes = Vec::new();
    for number in 0..6_000_u32 {
        // push; je
        let target = (number.wrapping_mul(2_654_435_761) % 6_000) as i32 - number as i32;
        bytes.extend([0x50, 0x0f, 0x84]);
        bytes.extend((target * 7 - 7).to_le_bytes());
    }
    for kind in KINDS {
        let followed = follow(&GeneratedCode { bytes: &bytes, frame_words: 6, ..plain(kind) });
        let most = if kind == GeneratedKind::VirtualCall { 0 } else { 12_000 };
        assert!(followed.is_cut || followed.instructions == most, "{kind:?}");
    }
}

#[test]
fn code_that_is_too_long_has_no_rules() {
    let bytes = vec![0x90; super::super::CODE_MAX + 1];
    let code = GeneratedCode { bytes: &bytes, ..plain(GeneratedKind::Stubs) };
    let expected = Followed { rows: vec![(0, BAD)], is_cut: true, ..Followed::default() };
    assert_eq!(follow(&code), expected);
    let none = follow(&plain(GeneratedKind::Method));
    assert_eq!((none.rows, none.is_cut), (vec![], false));
}

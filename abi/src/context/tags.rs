//! The names of a table's tags: ten at most, each given a place once and for good.
//!
//! The state of a place is one word, [`TagKey::kind`]:
//!
//! | value | state |
//! |---|---|
//! | 0 | free |
//! | `CLAIMED`, kind, id of a text | taken for the name that this text is; it is being written |
//! | [`TagKind`] | the name is whole |
//!
//! # Invariants
//! - Places are taken in order, by a swap, and never given back.
//! - Nobody waits for a name that another thread writes: whoever comes by writes it as well, out of
//!   the text. All write the same.
//! - Whoever sees a [`TagKind`] sees the whole name. A reader takes any other value for a free
//!   place.

use super::TAGS;
use super::texts::{TEXT_MAX, Texts};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Most bytes of a tag's name. Fewer in the models, for the reason that they have fewer tags.
pub const TAG_NAME_MAX: usize = if cfg!(loom) { 8 } else { 56 };

/// Marks a place whose name is being written. The bit below it is the kind, the rest the text's id.
const CLAIMED: u32 = 1 << 31;
const CLAIMED_TEXT: u32 = 1 << 30;

/// What the values of a tag are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum TagKind {
    /// Numbers.
    Number = 1,
    /// Texts of the table: the word that it begins at, plus 1.
    Text = 2,
}

/// A tag's name.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TagKey {
    /// [`TagKind`] once the name is whole; anything else for a place that is free, or whose name is
    /// being written.
    pub kind: AtomicU32,
    /// Bytes of the name.
    pub len: AtomicU32,
    /// The name, UTF-8.
    pub name: [AtomicU64; TAG_NAME_MAX / 8],
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<TagKey>() == 64);

/// Why a name has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagRefused {
    /// It is empty, or longer than [`TAG_NAME_MAX`] bytes.
    Name,
    /// All places are taken by other names, or there is no room left for texts, or none for a table
    /// at all.
    Full,
    /// It was registered with values of the other kind.
    OtherKind,
}

impl core::fmt::Display for TagRefused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Name => "the name of a tag has 1 to 56 bytes",
            Self::Full => "there are ten tags already, or no room for texts or for a table",
            Self::OtherKind => "the tag has values of the other kind",
        })
    }
}

impl core::error::Error for TagRefused {}

impl TagKind {
    /// The kind with this number.
    pub fn from_raw(raw: u32) -> Option<Self> {
        [Self::Number, Self::Text].into_iter().find(|kind| *kind as u32 == raw)
    }
}

impl TagKey {
    /// The kind and the bytes of the name, put into `room`. `None` for a place without a name.
    pub fn read<'a>(&self, room: &'a mut [u8; TAG_NAME_MAX]) -> Option<(TagKind, &'a [u8])> {
        // Acquire: pairs with the swap in `write`; the name is whole.
        let kind = TagKind::from_raw(self.kind.load(Ordering::Acquire))?;
        // Relaxed, both: ordered by the load above.
        let len = self.len.load(Ordering::Relaxed) as usize;
        for (bytes, word) in room.chunks_mut(8).zip(&self.name) {
            for (to, from) in bytes.iter_mut().zip(word.load(Ordering::Relaxed).to_le_bytes()) {
                *to = from;
            }
        }
        Some((kind, room.get(..len)?))
    }

    /// Writes the name of a place that is claimed by `claim`, as others may do at the same time.
    fn write(&self, claim: u32, name: &[u8]) {
        for (at, word) in self.name.iter().enumerate() {
            let mut bytes = [0; 8];
            for (to, from) in bytes.iter_mut().zip(name.iter().skip(at * 8)) {
                *to = *from;
            }
            // Relaxed, both: published by the swap below. A thread that comes late writes what is
            // there.
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        self.len.store(name.len() as u32, Ordering::Relaxed);
        let kind = if claim & CLAIMED_TEXT == 0 { TagKind::Number } else { TagKind::Text };
        // Release: pairs with the Acquire in `read`, and makes the name visible. Relaxed on
        // failure: another thread has written the name.
        let _ =
            self.kind.compare_exchange(claim, kind as u32, Ordering::Release, Ordering::Relaxed);
    }
}

/// The places of a table's tags.
#[derive(Debug, Clone, Copy)]
pub struct TagNames<'a> {
    /// Their names.
    pub keys: &'a [TagKey; TAGS],
    /// How many are given out.
    pub used: &'a AtomicU32,
    /// Where a name is kept while it is written.
    pub texts: Texts<'a>,
}

impl TagNames<'_> {
    /// The place of the tag with this name, which is given one if it has none.
    pub fn register(self, name: &[u8], kind: TagKind) -> Result<usize, TagRefused> {
        if name.is_empty() || name.len() > TAG_NAME_MAX {
            return Err(TagRefused::Name);
        }
        let mut claim = None;
        for (place, key) in self.keys.iter().enumerate() {
            // Acquire: pairs with the swap below; the text of a claim is whole.
            if key.kind.load(Ordering::Acquire) == 0 {
                let own = match claim {
                    Some(own) => own,
                    None => self.claim_of(name, kind).ok_or(TagRefused::Full)?,
                };
                claim = Some(own);
                // Release: pairs with the Acquire above and in `finish`. Relaxed on failure: as it
                // is loaded anew.
                let swap = key.kind.compare_exchange(0, own, Ordering::Release, Ordering::Relaxed);
                if swap.is_ok() {
                    // Relaxed: a count.
                    self.used.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.finish(key);
            match key.read(&mut [0; TAG_NAME_MAX]) {
                Some((there, known)) if known == name => {
                    return if there == kind { Ok(place) } else { Err(TagRefused::OtherKind) };
                }
                _ => {}
            }
        }
        Err(TagRefused::Full)
    }

    fn claim_of(self, name: &[u8], kind: TagKind) -> Option<u32> {
        let id = Some(self.texts.intern(name)).filter(|id| *id != 0)?;
        Some(CLAIMED | if kind == TagKind::Text { CLAIMED_TEXT } else { 0 } | id)
    }

    /// Writes the name of a place that is claimed, whoever has claimed it.
    fn finish(self, key: &TagKey) {
        // Acquire: pairs with the swap in `register`; the text of a claim is whole.
        let claim = key.kind.load(Ordering::Acquire);
        if claim & CLAIMED == 0 {
            return;
        }
        let mut room = [0; TEXT_MAX];
        if let Some(name) = self.texts.get(claim & !(CLAIMED | CLAIMED_TEXT), &mut room) {
            key.write(claim, name);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::Room;
    use super::*;

    fn names(tags: TagNames<'_>) -> Vec<(TagKind, String)> {
        let read = |key: &TagKey| {
            let mut room = [0; TAG_NAME_MAX];
            let (kind, name) = key.read(&mut room)?;
            Some((kind, String::from_utf8(name.to_vec()).expect("UTF-8")))
        };
        tags.keys.iter().filter_map(read).collect()
    }

    #[test]
    fn a_name_has_one_place_and_one_kind() {
        let room = Room::new();
        let tags = room.table().tags();
        assert_eq!(tags.register(b"tenant", TagKind::Number), Ok(0));
        assert_eq!(tags.register(b"route", TagKind::Text), Ok(1));
        assert_eq!(tags.register(b"tenant", TagKind::Number), Ok(0));
        assert_eq!(tags.register(b"tenant", TagKind::Text), Err(TagRefused::OtherKind));
        let expected = [(TagKind::Number, "tenant".into()), (TagKind::Text, "route".into())];
        assert_eq!(names(tags), expected);
        assert_eq!(tags.used.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn names_of_no_length_or_too_many_bytes_are_refused() {
        let room = Room::new();
        let tags = room.table().tags();
        let longest = [b'x'; TAG_NAME_MAX + 1];
        for name in [&b""[..], &longest] {
            assert_eq!(tags.register(name, TagKind::Text), Err(TagRefused::Name));
        }
        assert_eq!(tags.register(&longest[1..], TagKind::Text), Ok(0));
        assert_eq!(names(tags), [(TagKind::Text, "x".repeat(TAG_NAME_MAX))]);
    }

    #[test]
    fn the_eleventh_name_is_refused_and_the_ten_stay() {
        let room = Room::new();
        let tags = room.table().tags();
        let register = |n: usize| tags.register(format!("tag {n}").as_bytes(), TagKind::Number);
        for n in 0..TAGS {
            assert_eq!(register(n), Ok(n));
        }
        assert_eq!(register(TAGS), Err(TagRefused::Full));
        assert_eq!(register(3), Ok(3));
        assert_eq!(names(tags).len(), TAGS);
    }

    #[test]
    fn a_name_that_its_thread_never_finished_is_finished_by_the_next() {
        let room = Room::new();
        let tags = room.table().tags();
        let claim = tags.claim_of(b"route", TagKind::Text).unwrap();
        tags.keys[0].kind.store(claim, Ordering::Relaxed);
        assert_eq!(names(tags), [], "a reader sees no name");
        assert_eq!(tags.register(b"tenant", TagKind::Number), Ok(1));
        let expected = [(TagKind::Text, "route".into()), (TagKind::Number, "tenant".into())];
        assert_eq!(names(tags), expected);
    }

    #[test]
    fn threads_that_register_the_same_names_at_once_get_the_same_places() {
        for _ in 0..200 {
            let room = Room::new();
            let all: Vec<Vec<_>> = std::thread::scope(|scope| {
                let register = |from: usize| {
                    let tags = room.table().tags();
                    // Each begins with another name.
                    let name = move |n: usize| format!("tag {}", (from + n) % 7);
                    let mut places: Vec<_> = (0..7)
                        .map(|n| {
                            (name(n), tags.register(name(n).as_bytes(), TagKind::Text).unwrap())
                        })
                        .collect();
                    places.sort();
                    places
                };
                let threads: Vec<_> =
                    (0..4).map(|from| scope.spawn(move || register(from))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for places in &all {
                assert_eq!(places, &all[0]);
            }
            let mut places: Vec<_> = all[0].iter().map(|(_, place)| *place).collect();
            places.sort_unstable();
            assert_eq!(places, (0..7).collect::<Vec<_>>(), "each name once");
        }
    }
}

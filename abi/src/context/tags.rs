//! The names of a table's tags. There are at most ten, and each name keeps its index forever.
//!
//! The state of a tag is one word, [`TagKey::kind`]:
//!
//! | value | state |
//! |---|---|
//! | 0 | free |
//! | `CLAIMED`, kind, id of a text | claimed for this text as the name, which is being written |
//! | [`TagKind`] | the name is complete |
//!
//! # Invariants
//! - Threads claim tags in order, by a swap, and never release them.
//! - No thread waits for a name that another thread writes. It writes the name as well, from the
//!   text, and all threads write the same bytes.
//! - A reader that sees a [`TagKind`] sees the complete name. It takes any other value for a free
//!   tag.

use super::TAGS;
use super::texts::{TEXT_MAX, Texts};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Maximum length of a tag's name in bytes. The models have fewer, for the reason given at
/// [`TAGS`].
pub const TAG_NAME_MAX: usize = if cfg!(loom) { 8 } else { 56 };

/// Marks a tag whose name is being written. The bit below it is the kind, and the other bits are
/// the text's id.
const CLAIMED: u32 = 1 << 31;
const CLAIMED_TEXT: u32 = 1 << 30;

/// The type of a tag's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum TagKind {
    /// Numbers.
    Number = 1,
    /// Texts of the table: the index of the text's first word, plus 1.
    Text = 2,
}

/// A tag's name.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TagKey {
    /// [`TagKind`] once the name is complete. Any other value for a tag that is free or whose name
    /// is being written.
    pub kind: AtomicU32,
    /// Length of the name in bytes.
    pub len: AtomicU32,
    /// The name, UTF-8.
    pub name: [AtomicU64; TAG_NAME_MAX / 8],
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<TagKey>() == 64);

/// The reason why a name was not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagRefused {
    /// The name is empty, or longer than [`TAG_NAME_MAX`] bytes.
    Name,
    /// All tags have other names, or there is no room for the text or for a table.
    Full,
    /// The name is registered with values of the other kind.
    OtherKind,
}

impl core::fmt::Display for TagRefused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Name => "a tag name must have 1 to 56 bytes",
            Self::Full => {
                "ten tags are registered already, or there is no room for a text or a table"
            }
            Self::OtherKind => "the tag is registered with values of the other kind",
        })
    }
}

impl core::error::Error for TagRefused {}

impl TagKind {
    /// Returns the kind with this number.
    pub fn from_raw(raw: u32) -> Option<Self> {
        [Self::Number, Self::Text].into_iter().find(|kind| *kind as u32 == raw)
    }
}

impl TagKey {
    /// Returns the kind and the bytes of the name, which it copies into `room`. `None` for a tag
    /// without a name.
    pub fn read<'a>(&self, room: &'a mut [u8; TAG_NAME_MAX]) -> Option<(TagKind, &'a [u8])> {
        // Acquire: pairs with the swap in `write`; the complete name is visible.
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

    /// Writes the name of a tag that `claim` claims. Other threads may do the same at the same
    /// time.
    fn write(&self, claim: u32, name: &[u8]) {
        for (at, word) in self.name.iter().enumerate() {
            let mut bytes = [0; 8];
            for (to, from) in bytes.iter_mut().zip(name.iter().skip(at * 8)) {
                *to = *from;
            }
            // Relaxed, both: the swap below publishes them. A late thread writes the bytes that are
            // already there.
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        self.len.store(name.len() as u32, Ordering::Relaxed);
        let kind = if claim & CLAIMED_TEXT == 0 { TagKind::Number } else { TagKind::Text };
        // Release: pairs with the Acquire in `read`; the name is visible. Relaxed on failure:
        // another thread has written the name.
        let _ =
            self.kind.compare_exchange(claim, kind as u32, Ordering::Release, Ordering::Relaxed);
    }
}

/// The tags of a table.
#[derive(Debug, Clone, Copy)]
pub struct TagNames<'a> {
    /// The names.
    pub keys: &'a [TagKey; TAGS],
    /// Number of allocated tags.
    pub used: &'a AtomicU32,
    /// The texts, which keep a name while it is written.
    pub texts: Texts<'a>,
}

impl TagNames<'_> {
    /// Returns the index of the tag with this name, and registers the name if it is new.
    pub fn register(self, name: &[u8], kind: TagKind) -> Result<usize, TagRefused> {
        if name.is_empty() || name.len() > TAG_NAME_MAX {
            return Err(TagRefused::Name);
        }
        let mut claim = None;
        for (index, key) in self.keys.iter().enumerate() {
            // Acquire: pairs with the swap below; the complete text of a claim is visible.
            if key.kind.load(Ordering::Acquire) == 0 {
                let own = match claim {
                    Some(own) => own,
                    None => self.claim_of(name, kind).ok_or(TagRefused::Full)?,
                };
                claim = Some(own);
                // Release: pairs with the Acquire above and in `finish`. Relaxed on failure:
                // `finish` loads the word again.
                let swap = key.kind.compare_exchange(0, own, Ordering::Release, Ordering::Relaxed);
                if swap.is_ok() {
                    // Relaxed: a count.
                    self.used.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.finish(key);
            match key.read(&mut [0; TAG_NAME_MAX]) {
                Some((there, known)) if known == name => {
                    return if there == kind { Ok(index) } else { Err(TagRefused::OtherKind) };
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

    /// Writes the name of a claimed tag, whichever thread claimed it.
    fn finish(self, key: &TagKey) {
        // Acquire: pairs with the swap in `register`; the complete text of a claim is visible.
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
    fn a_name_has_one_index_and_one_kind() {
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
    fn empty_and_too_long_names_are_refused() {
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
    fn threads_that_register_the_same_names_at_once_get_the_same_indices() {
        for _ in 0..200 {
            let room = Room::new();
            let all: Vec<Vec<_>> = std::thread::scope(|scope| {
                let register = |from: usize| {
                    let tags = room.table().tags();
                    // Each thread begins with another name.
                    let name = move |n: usize| format!("tag {}", (from + n) % 7);
                    let mut indices: Vec<_> = (0..7)
                        .map(|n| {
                            (name(n), tags.register(name(n).as_bytes(), TagKind::Text).unwrap())
                        })
                        .collect();
                    indices.sort();
                    indices
                };
                let threads: Vec<_> =
                    (0..4).map(|from| scope.spawn(move || register(from))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for indices in &all {
                assert_eq!(indices, &all[0]);
            }
            let mut indices: Vec<_> = all[0].iter().map(|(_, index)| *index).collect();
            indices.sort_unstable();
            assert_eq!(indices, (0..7).collect::<Vec<_>>(), "each name once");
        }
    }
}

//! The texts of a table. They are values of tags, and each is kept once and forever.
//!
//! # Invariants
//! - A text is complete before the index names it, and never changes.
//! - A text has one id: all threads that search for it probe the same index words, and take the
//!   first free one by a swap.
//! - No thread waits. A thread that loses a swap to an equal text leaves its own copy unused.

use super::table_layout;
use crate::sync::{AtomicU32, Ordering};

/// Maximum length of a text in bytes.
pub const TEXT_MAX: usize = 255;

/// Returns the hash of a text (FNV-1a), which gives its first index word.
fn hash(text: &[u8]) -> u32 {
    text.iter().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Returns the number of words of a text with its length before it.
fn words_of(len: usize) -> usize {
    1 + len.div_ceil(4)
}

/// Returns the word that begins with these bytes.
fn word(bytes: &[u8]) -> u32 {
    let mut padded = [0; 4];
    for (to, from) in padded.iter_mut().zip(bytes) {
        *to = *from;
    }
    u32::from_le_bytes(padded)
}

/// The texts of a table and the index that finds them.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    /// [`table_layout::TEXT_INDEX`]: the index of a text's first word, plus 1, or 0.
    pub index: &'a [AtomicU32],
    /// [`table_layout::TEXTS`].
    pub words: &'a [AtomicU32],
    /// Number of allocated words.
    pub used: &'a AtomicU32,
    /// Counts texts that found no room.
    pub refused: &'a AtomicU32,
}

impl Texts<'_> {
    /// Returns the id of a text as the value of a tag, and adds a new text. If the text is longer
    /// than [`TEXT_MAX`] bytes or finds no room, returns 0 and counts the refusal.
    pub fn intern(self, text: &[u8]) -> u32 {
        let id = if text.len() <= TEXT_MAX { self.look_for(text) } else { None };
        if id.is_none() {
            // Relaxed: a count.
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        id.unwrap_or(0)
    }

    /// Copies the bytes of a text into `room` and returns them. `None` for an id that no text has.
    pub fn get(self, id: u32, room: &mut [u8; TEXT_MAX]) -> Option<&[u8]> {
        let words = self.words_from(id)?;
        // Relaxed, both: the id comes from an Acquire load of the index, or from a context that was
        // read after such a load.
        let len = words.first()?.load(Ordering::Relaxed) as usize;
        let text = room.get_mut(..len)?;
        for (bytes, word) in text.chunks_mut(4).zip(words.get(1..words_of(len))?) {
            for (to, from) in bytes.iter_mut().zip(word.load(Ordering::Relaxed).to_le_bytes()) {
                *to = from;
            }
        }
        Some(text)
    }

    fn words_from(&self, id: u32) -> Option<&[AtomicU32]> {
        self.words.get((id as usize).checked_sub(1)?..)
    }

    fn look_for(self, text: &[u8]) -> Option<u32> {
        let mask = self.index.len().checked_sub(1)?;
        let mut added = None;
        for step in 0..table_layout::TEXT_PROBES.min(self.index.len()) {
            let index = self.index.get((hash(text) as usize).wrapping_add(step) & mask)?;
            // Acquire: pairs with the swap below; the complete text that it names is visible.
            let mut id = index.load(Ordering::Acquire);
            if id == 0 {
                // The text is added once only, and its copy goes into the first free index word.
                let own = match added {
                    Some(own) => own,
                    None => self.add(text)?,
                };
                added = Some(own);
                // Release: pairs with the Acquire above; the text is visible. Acquire on failure:
                // pairs with the Release of the faster thread; its text is visible.
                match index.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return added,
                    Err(other) => id = other,
                }
            }
            if self.is(id, text) {
                return Some(id);
            }
        }
        None
    }

    /// Whether the text with this id is `text`.
    fn is(self, id: u32, text: &[u8]) -> bool {
        self.get(id, &mut [0; TEXT_MAX]) == Some(text)
    }

    /// Writes a text that the index does not name yet.
    fn add(self, text: &[u8]) -> Option<u32> {
        let (need, room) = (words_of(text.len()) as u32, self.words.len() as u32);
        // Relaxed: the number of words publishes nothing; the index publishes the text. The check
        // comes first so that endless texts that find no room do not overflow the number.
        let is_full = |from: u32| from.checked_add(need).is_none_or(|end| end > room);
        if is_full(self.used.load(Ordering::Relaxed)) {
            return None;
        }
        // Relaxed: as above.
        let from = self.used.fetch_add(need, Ordering::Relaxed);
        let id = from.checked_add(1)?;
        if is_full(from) {
            return None;
        }
        let (first, rest) = self.words_from(id)?.split_first()?;
        // Relaxed, both: the index publishes them.
        first.store(text.len() as u32, Ordering::Relaxed);
        for (to, bytes) in rest.iter().zip(text.chunks(4)) {
            to.store(word(bytes), Ordering::Relaxed);
        }
        Some(id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::table_layout::{TEXT_INDEX_LEN, TEXT_WORDS};
    use super::super::tests::Room;
    use super::*;

    fn refused(texts: Texts<'_>) -> u32 {
        texts.refused.load(Ordering::Relaxed)
    }

    fn check(text: &[u8]) {
        let room = Room::new();
        let texts = room.table().texts;
        let id = texts.intern(text);
        assert_ne!(id, 0);
        assert_eq!(texts.get(id, &mut [0; TEXT_MAX]), Some(text));
        assert_eq!(texts.intern(text), id, "the same text has the same id");
        assert_ne!(texts.intern(b"another"), id);
        assert_eq!(refused(texts), 0);
    }

    #[test]
    fn a_text_is_read_back_as_it_was() {
        for text in [&b""[..], b"a", b"abc", b"abcd", b"abcde", b"\0\0", &[7; TEXT_MAX]] {
            check(text);
        }
    }

    #[test]
    fn a_text_is_laid_out_as_documented() {
        let room = Room::new();
        let texts = room.table().texts;
        assert_eq!([texts.intern(b"route"), texts.intern(b"x")], [1, 4], "word index + 1");
        let words: Vec<u32> =
            texts.words[..5].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        assert_eq!(words, [5, u32::from_le_bytes(*b"rout"), u32::from(b'e'), 1, u32::from(b'x')]);
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_and_counted() {
        let room = Room::new();
        assert_eq!(room.table().texts.intern(&[7; TEXT_MAX + 1]), 0);
        assert_eq!(refused(room.table().texts), 1);
    }

    #[test]
    fn ids_without_a_text_return_none() {
        let room = Room::new();
        let texts = room.table().texts;
        for id in [0, TEXT_WORDS as u32 + 1, u32::MAX] {
            assert_eq!(texts.get(id, &mut [0; TEXT_MAX]), None, "{id}");
        }
        // Values that a scribbling application may leave there.
        texts.words[0].store(u32::MAX, Ordering::Relaxed);
        assert_eq!(texts.get(1, &mut [0; TEXT_MAX]), None);
        texts.words[TEXT_WORDS - 1].store(255, Ordering::Relaxed);
        assert_eq!(texts.get(TEXT_WORDS as u32, &mut [0; TEXT_MAX]), None);
    }

    #[test]
    fn endless_texts_are_refused_and_counted() {
        let room = Room::new();
        let texts = room.table().texts;
        let ids: Vec<u32> = (0..40_000_u32)
            .map(|n| texts.intern(&[&n.to_le_bytes()[..], &[0; 96]].concat()))
            .collect();
        let kept = ids.iter().filter(|id| **id != 0).count();
        assert!(kept > 9_000 && kept * words_of(100) <= TEXT_WORDS, "{kept} kept");
        assert_eq!(refused(texts) as usize, ids.len() - kept);
        let used = texts.used.load(Ordering::Relaxed) as usize;
        assert!(used <= TEXT_WORDS, "{used}");
        assert_eq!(
            texts.intern(&[&0_u32.to_le_bytes()[..], &[0; 96]].concat()),
            ids[0],
            "the kept texts stay"
        );
    }

    #[test]
    fn the_index_fills_up_before_the_room_with_short_texts() {
        let room = Room::new();
        let texts = room.table().texts;
        let kept = (0..40_000_u32).filter(|n| texts.intern(&n.to_le_bytes()) != 0).count();
        assert!(kept > TEXT_INDEX_LEN / 2 && kept <= TEXT_INDEX_LEN, "{kept} kept");
        assert_eq!(refused(texts) as usize, 40_000 - kept);
    }

    #[test]
    fn threads_that_add_the_same_texts_at_once_get_the_same_ids() {
        let room = Room::new();
        let add = || -> Vec<u32> {
            (0..2_000_u32)
                .map(|n| room.table().texts.intern(format!("text {n}").as_bytes()))
                .collect()
        };
        let all: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(add)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for ids in &all {
            assert_eq!(ids, &all[0]);
        }
        let distinct: std::collections::HashSet<_> = all[0].iter().collect();
        assert_eq!((distinct.len(), all[0].contains(&0)), (2_000, false));
    }
}

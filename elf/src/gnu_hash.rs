//! The table by which the loader finds symbols for other modules (`DT_GNU_HASH`).
//!
//! It has a header of four words, a Bloom filter, the first symbol of each bucket, and for each
//! symbol its hash, whose lowest bit marks the last symbol of a bucket.

use object::elf::{DT_GNU_HASH, gnu_hash};

use super::dynamic::Dynamic;

/// A hash table of symbols. It may have anything.
#[derive(Debug, Clone, Copy)]
pub(super) struct GnuHash<'a> {
    /// The words of the table, and whatever follows it.
    words: &'a [[u8; 4]],
    /// The number of buckets, and the index of their first word.
    buckets: usize,
    buckets_at: usize,
    /// The index of the first symbol that the table has.
    first: usize,
}

impl<'a> GnuHash<'a> {
    /// Returns the table of a file, if it has one.
    pub(super) fn of(dynamic: &Dynamic<'_, 'a>) -> Option<Self> {
        let (words, _) = dynamic.data(DT_GNU_HASH)?.as_chunks();
        let [buckets, first, filters] = [0, 1, 2].map(|at| number(words, at));
        let buckets_at = filters?.checked_mul(2)?.checked_add(4)?;
        let buckets = buckets?;
        // The chains are within the words, too.
        buckets_at.checked_add(buckets).filter(|at| *at <= words.len())?;
        Some(Self { words, buckets, buckets_at, first: first? })
    }

    /// Returns the number of symbols in the symbol table. `None` if the last chain has no end.
    pub(super) fn count(&self) -> Option<usize> {
        let heads = self.buckets_at..self.buckets_at + self.buckets;
        let last = heads.filter_map(|at| number(self.words, at)).max().unwrap_or(0);
        if last < self.first {
            return Some(self.first);
        }
        let mut chain = last..;
        let end = chain.find_map(|symbol| match self.hash(symbol) {
            Some(hash) if hash & 1 == 0 => None,
            end => Some(end.map(|_| symbol)),
        });
        Some(end.flatten()? + 1)
    }

    /// Returns the indices of the symbols that may have this name.
    pub(super) fn candidates(&self, name: &str) -> impl Iterator<Item = usize> {
        let wanted = gnu_hash(name.as_bytes());
        let bucket = (wanted as usize).checked_rem(self.buckets);
        let head = bucket.and_then(|bucket| number(self.words, self.buckets_at + bucket));
        let mut next = head.filter(|head| *head >= self.first);
        let chain = std::iter::from_fn(move || {
            let symbol = next?;
            let hash = self.hash(symbol)?;
            next = (hash & 1 == 0).then_some(symbol + 1);
            Some((symbol, hash))
        });
        chain.filter(move |(_, hash)| hash | 1 == wanted | 1).map(|(symbol, _)| symbol)
    }

    /// Returns the hash of a symbol.
    fn hash(&self, symbol: usize) -> Option<u32> {
        let at = symbol.checked_sub(self.first)?.checked_add(self.buckets_at + self.buckets)?;
        number(self.words, at).map(|word| word as u32)
    }
}

/// Returns the word at an index.
fn number(words: &[[u8; 4]], at: usize) -> Option<usize> {
    words.get(at).map(|word| u32::from_le_bytes(*word) as usize)
}

//! A cache of decoded values by file offset, within a budget of bytes.

use std::collections::HashMap;

/// Keeps values and evicts the least recently used one when space is needed.
#[derive(Debug)]
pub(super) struct Cache<T> {
    values: HashMap<u64, CachedValue<T>>,
    bytes: usize,
    budget: usize,
    uses: u64,
}

#[derive(Debug)]
struct CachedValue<T> {
    value: T,
    bytes: usize,
    used: u64,
}

impl<T: Clone> Cache<T> {
    pub(super) fn new(budget: usize) -> Self {
        Self { values: HashMap::new(), bytes: 0, budget, uses: 0 }
    }

    pub(super) fn get(&mut self, key: u64) -> Option<T> {
        self.uses += 1;
        let kept = self.values.get_mut(&key)?;
        kept.used = self.uses;
        Some(kept.value.clone())
    }

    /// Adds a value of `bytes` bytes.
    pub(super) fn insert(&mut self, key: u64, value: T, bytes: usize) {
        while self.bytes + bytes > self.budget {
            // The cache holds few values, so a search is as good as a list.
            let oldest = self.values.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key);
            let Some(kept) = oldest.and_then(|key| self.values.remove(&key)) else { break };
            self.bytes -= kept.bytes;
        }
        self.uses += 1;
        self.bytes += bytes;
        let kept = CachedValue { value, bytes, used: self.uses };
        if let Some(before) = self.values.insert(key, kept) {
            self.bytes -= before.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_the_budget_holds() {
        let mut cache = Cache::new(10);
        (0..3).for_each(|key| cache.insert(key, key, 3));
        assert_eq!(cache.get(0), Some(0));
        cache.insert(3, 3, 4);
        assert_eq!([0, 1, 2, 3].map(|key| cache.get(key)), [Some(0), None, Some(2), Some(3)]);
        cache.insert(4, 4, 100);
        assert_eq!([0, 2, 3, 4].map(|key| cache.get(key)), [None, None, None, Some(4)]);
        cache.insert(5, 5, 1);
        assert_eq!((cache.get(4), cache.get(5), cache.bytes), (None, Some(5), 1));
        cache.insert(5, 6, 2);
        assert_eq!((cache.get(5), cache.bytes), (Some(6), 2));
    }
}

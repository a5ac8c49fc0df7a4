//! The atomics: `core`'s, or loom's when the models run (`--cfg loom`).
//!
//! Under loom the orderings can be weakened on purpose (`planted`), so that each model shows that
//! it would catch the mistake it is there for, in the real code and not in a copy of it.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use self::planted::{AtomicU32, AtomicU64, fence, next_tag};
#[cfg(loom)]
pub use loom::sync::atomic::Ordering;

/// The next tag of a word that may come to hold an old value again: a swap against the old one must
/// fail all the same.
#[cfg(not(loom))]
pub fn next_tag(tag: u64) -> u64 {
    tag.wrapping_add(1)
}

/// Loom's atomics with mistakes that a model can ask for.
#[cfg(loom)]
pub mod planted {
    use std::sync::Mutex;

    use super::Ordering;

    /// A mistake in the real code, as the models plant it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Mistake {
        /// All is as written.
        None,
        /// The fences do nothing.
        NoFence,
        /// Every Release (and Acquire) is Relaxed.
        AllRelaxed,
        /// Tags stand still.
        NoTag,
        /// Swaps do not compare.
        BlindSwap,
        /// A hazard is confirmed by its table alone.
        IgnoreGeneration,
        /// A hazard slot is claimed by a load and a store.
        ClaimWithoutSwap,
        /// A claim that rotations overtook stays where it is.
        KeepOvertaken,
        /// A dead owner's hazard slot is cleared whatever it holds by now.
        ReclaimUnseen,
        /// A preserved trace is taken for present when its frames are, under whatever id.
        PreserveByFrames,
        /// A commit word does not say of which instance it is.
        CommitOfAnyInstance,
        /// A context is changed without being marked.
        NoMark,
    }

    static MISTAKE: Mutex<Mistake> = Mutex::new(Mistake::None);

    /// Plants a mistake for the models that follow. Models run one at a time.
    pub fn plant(mistake: Mistake) {
        *MISTAKE.lock().unwrap_or_else(|poison| poison.into_inner()) = mistake;
    }

    /// Whether this mistake is planted.
    pub fn has(mistake: Mistake) -> bool {
        *MISTAKE.lock().unwrap_or_else(|poison| poison.into_inner()) == mistake
    }

    fn order(ordering: Ordering) -> Ordering {
        if has(Mistake::AllRelaxed) { Ordering::Relaxed } else { ordering }
    }

    /// The next tag.
    pub fn next_tag(tag: u64) -> u64 {
        if has(Mistake::NoTag) { tag } else { tag.wrapping_add(1) }
    }

    /// As `core`'s.
    pub fn fence(ordering: Ordering) {
        if !has(Mistake::NoFence) {
            loom::sync::atomic::fence(ordering);
        }
    }

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            /// As `core`'s, with what the storage uses of it.
            #[derive(Debug, Default)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                /// As `core`'s.
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                /// As `core`'s.
                pub fn load(&self, ordering: Ordering) -> $value {
                    self.0.load(order(ordering))
                }

                /// As `core`'s.
                pub fn store(&self, value: $value, ordering: Ordering) {
                    self.0.store(value, order(ordering));
                }

                /// As `core`'s.
                pub fn fetch_add(&self, value: $value, ordering: Ordering) -> $value {
                    self.0.fetch_add(value, order(ordering))
                }

                /// As `core`'s.
                pub fn fetch_or(&self, value: $value, ordering: Ordering) -> $value {
                    self.0.fetch_or(value, order(ordering))
                }

                /// As `core`'s.
                pub fn fetch_and(&self, value: $value, ordering: Ordering) -> $value {
                    self.0.fetch_and(value, order(ordering))
                }

                /// As `core`'s.
                pub fn swap(&self, value: $value, ordering: Ordering) -> $value {
                    self.0.swap(value, order(ordering))
                }

                /// As `core`'s.
                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    if has(Mistake::BlindSwap) {
                        return Ok(self.0.swap(new, order(success)));
                    }
                    self.0.compare_exchange(current, new, order(success), order(failure))
                }
            }
        };
    }
    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}

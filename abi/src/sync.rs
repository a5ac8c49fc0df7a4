//! The atomics: `core`'s, or loom's when the models run (`--cfg loom`).
//!
//! Under loom a model can weaken the orderings on purpose (`planted`). Each model thus shows that
//! it catches the mistake it exists for, in the real code and not in a copy.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use self::planted::{AtomicU32, AtomicU64, fence, next_tag};
#[cfg(loom)]
pub use loom::sync::atomic::Ordering;

/// Returns the next tag of a word. The tag makes a swap against an old value fail even if the rest
/// of the word has that old value again (ABA).
#[cfg(not(loom))]
pub fn next_tag(tag: u64) -> u64 {
    tag.wrapping_add(1)
}

/// Loom's atomics with mistakes that a model can ask for.
#[cfg(loom)]
pub mod planted {
    use std::sync::Mutex;

    use super::Ordering;

    /// A mistake that a model plants in the real code.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Mistake {
        /// No mistake.
        None,
        /// Fences do nothing.
        NoFence,
        /// Every Release (and Acquire) is Relaxed.
        AllRelaxed,
        /// Tags never change.
        NoTag,
        /// Compare-and-swap stores without comparing.
        BlindSwap,
        /// A hazard is confirmed by its table alone, without the generation.
        IgnoreGeneration,
        /// A hazard slot is claimed by a load and a store.
        ClaimWithoutSwap,
        /// A claim that rotations overtook is not withdrawn.
        KeepOvertaken,
        /// A dead owner's hazard slot is cleared without checking that it still holds the dead
        /// owner's claim.
        ReclaimUnseen,
        /// A preserved trace counts as present if its frames are present, whatever their id.
        PreserveByFrames,
        /// A commit word does not name its instance.
        CommitOfAnyInstance,
        /// A context is not marked while it changes.
        NoMark,
    }

    static MISTAKE: Mutex<Mistake> = Mutex::new(Mistake::None);

    /// Plants a mistake for the next models. Models run one at a time.
    pub fn plant(mistake: Mistake) {
        *MISTAKE.lock().unwrap_or_else(|poison| poison.into_inner()) = mistake;
    }

    /// Returns whether this mistake is planted.
    pub fn has(mistake: Mistake) -> bool {
        *MISTAKE.lock().unwrap_or_else(|poison| poison.into_inner()) == mistake
    }

    fn order(ordering: Ordering) -> Ordering {
        if has(Mistake::AllRelaxed) { Ordering::Relaxed } else { ordering }
    }

    /// Returns the next tag, or the same one if that mistake is planted.
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
            /// The atomic of `core`, with the methods that the storage uses.
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

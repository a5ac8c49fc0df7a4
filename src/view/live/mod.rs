//! The live table: where a process spends its time, in the last interval and since the start.
//!
//! Invariants: a row's share is of all samples of its time, so that what is not in a row is told of
//! in one; memory is that of the distinct names, of which there are [`ROWS_MAX`] at most.

mod board;
mod head;
mod key;
mod look;
mod pace;
mod screen;
mod table;
mod tally;

pub use board::Board;
pub use head::Head;
pub use key::{Key, keys};
pub use look::{Look, Order};
pub use pace::Pace;
pub use screen::{Line, Size, Style, plain, screen};
pub use tally::{Kind, ROWS_MAX};

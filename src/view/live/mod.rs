//! The live table: where processes spend their time, in the last interval and since the start.
//!
//! Invariants: a row's share refers to all samples of its time, and the last row sums up the hidden
//! rows. Memory grows with the distinct names, at most [`ROWS_MAX`].

mod display_state;
mod keys;
mod live_counts;
mod row_weights;
mod screen;
mod status;
mod table;
mod unread_samples;

pub use display_state::{DisplayState, Order};
pub use keys::{KeyPress, keys};
pub use live_counts::LiveCounts;
pub use row_weights::{ROWS_MAX, RowKind};
pub use screen::{LineStyle, ScreenLine, ScreenSize, plain, screen};
pub use status::LiveStatus;
pub use unread_samples::UnreadSamples;

//! The interface between a recording and its callers: options, events, errors and the summary.
//!
//! The stop condition and the clock are also here, since every layer uses them.

pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod number_format;
pub(crate) mod observer;
pub(crate) mod options;
pub(crate) mod pattern;
pub(crate) mod periodic;
pub(crate) mod sampling;
pub(crate) mod stop;
pub(crate) mod summary;
pub(crate) mod trigger;

//! What a recording and its callers agree on: plain values, the end, the clock.

pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod every;
pub(crate) mod figures;
pub(crate) mod observer;
pub(crate) mod options;
pub(crate) mod pattern;
pub(crate) mod sampling;
pub(crate) mod stop;
pub(crate) mod summary;
pub(crate) mod trigger;

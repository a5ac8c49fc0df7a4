//! Names of managed frames.
//!
//! The recorder reads a function at the drain that first sees it ([`reader`]), because the target
//! may free it soon. The writer places the frames among the native ones ([`order`], [`mixed`]) and
//! turns them into locations ([`locations`]).

pub(crate) mod count;
pub(crate) mod locations;
pub(crate) mod mixed;
pub(crate) mod order;
pub(crate) mod reader;
pub(crate) mod thread_names;

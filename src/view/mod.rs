//! Views of a trace: pure functions from a [`Profile`] to a writer.
//!
//! Invariants: the same trace gives the same bytes; text from the trace is escaped; no recursion
//! follows the depth of a stack. Does not open files other than the trace, print to a terminal or
//! know of arguments.

pub mod calls;
mod columns;
mod context;
mod date;
pub mod diff;
pub mod dump;
mod error;
pub mod escape;
pub mod export;
mod filter;
mod forest;
pub mod functions;
mod groups;
pub mod html;
mod idle;
mod invert;
pub mod json;
pub mod live;
mod load;
mod look;
mod mode;
pub mod modules;
mod moment;
mod names;
mod news;
mod parts;
mod processes;
mod profile;
pub mod ranking;
mod rate;
mod recording;
mod rows;
pub mod screen;
mod seen;
mod selection;
mod stack_filter;
mod states;
mod strip;
mod summary;
pub mod timeline;
mod told;
pub mod tree;
pub mod verification;
mod waits;

pub use context::{ContextFilter, RootId, SpanId, TagValue};
pub use error::ViewError;
pub use filter::{CallNumber, Filter, StateName};
pub use forest::{Split, TreeOptions};
pub use groups::{By, GroupId, Grouping, Groups};
pub use load::{load, load_with_contexts};
pub use look::Look;
pub use mode::Mode;
pub use moment::{Moment, TimeRange};
pub use news::News;
pub use profile::{Profile, ThreadGrower, ThreadProfile};
pub use recording::Recording;
pub use rows::Limits;
pub use selection::{Selected, Selection};
pub use stack_filter::{FunctionPattern, StackFilter};
pub use states::StateTimes;
pub use strip::{Cell, Strip};
pub use told::context_text;
pub use waits::{Wait, WaitId, Waits};

//! Views of a trace: pure functions from a [`Profile`] to a writer.
//!
//! Invariants: the same trace gives the same bytes; text from the trace is escaped; no recursion
//! follows the depth of a stack. Does not open files other than the trace (but for source maps, if
//! asked to), print to a terminal or know command-line arguments.

pub mod diff;
pub mod dump;
pub mod export;
pub mod html;
pub mod json;
pub mod live;
pub mod modules;
pub mod print;
pub mod profile;
pub mod recording;
pub mod select;
mod source_maps;
pub mod stacks;
pub mod text;
pub mod timeline;

pub use print::options::{PrintLimits, Split, TreeOptions};
pub use profile::activity::{ActivityCell, ActivityProfile};
pub use profile::load::{load, load_with_contexts};
pub use profile::new_samples::NewSamples;
pub use profile::states::StateTimes;
pub use profile::thread_profile::{Profile, ThreadProfile, ThreadProfileBuilder};
pub use recording::context::context_text;
pub use recording::mode::Mode;
pub use recording::recording_info::RecordingInfo;
pub use recording::waits::{Wait, WaitId, Waits};
pub use select::context_filter::{ContextFilter, TagValue};
pub use select::error::ViewError;
pub use select::groups::{GroupBy, GroupId, Grouping, Groups};
pub use select::sample_filter::{CallNumber, SampleFilter, StateName};
pub use select::selection::{Selected, Selection};
pub use select::stack_filter::{FunctionPattern, StackFilter};
pub use select::time_point::{TimePoint, TimeRange};
pub use source_maps::SourceMaps;
pub use stacks::StackOptions;
pub use text::span_id::{RootId, SpanId};
pub use text::text_style::TextStyle;

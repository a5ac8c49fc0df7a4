//! Views of a trace: pure functions from a [`Profile`] to a writer.
//!
//! Invariants: the same trace gives the same bytes; text from the trace is escaped; no recursion
//! follows the depth of a stack. Does not open files other than the trace, print to a terminal or
//! know of arguments.

mod activity;
pub mod call_tree;
mod context;
mod context_filter;
mod date;
pub mod diff;
pub mod dump;
mod error;
pub mod escape;
pub mod export;
pub mod flat_profile;
mod groups;
pub mod html;
mod idle;
mod inverted_tree;
pub mod json;
pub mod live;
mod load;
mod mode;
pub mod modules;
mod new_samples;
mod number;
mod options;
mod processes;
mod profile;
mod rate_changes;
mod recording_info;
mod sample_filter;
mod sample_totals;
mod selection;
mod span_id;
mod stack_filter;
mod states;
mod step_names;
mod summary;
pub mod summary_screen;
mod text_style;
mod thread_labels;
mod time_point;
pub mod timeline;
pub mod top_table;
pub mod tree;
mod tree_columns;
mod tree_rows;
mod tree_sections;
mod unit;
pub mod verification;
mod waits;

pub use activity::{Activity, ActivityCell};
pub use context::context_text;
pub use context_filter::{ContextFilter, TagValue};
pub use error::ViewError;
pub use groups::{GroupBy, GroupId, Grouping, Groups};
pub use load::{load, load_with_contexts};
pub use mode::Mode;
pub use new_samples::NewSamples;
pub use options::{Limits, Split, TreeOptions};
pub use profile::{Profile, ThreadProfile, ThreadProfileBuilder};
pub use recording_info::RecordingInfo;
pub use sample_filter::{CallNumber, SampleFilter, StateName};
pub use selection::{Selected, Selection};
pub use span_id::{RootId, SpanId};
pub use stack_filter::{FunctionPattern, StackFilter};
pub use states::StateTimes;
pub use text_style::TextStyle;
pub use time_point::{TimePoint, TimeRange};
pub use waits::{Wait, WaitId, Waits};

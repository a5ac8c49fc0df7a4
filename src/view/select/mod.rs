//! Selection and grouping of the samples of a view.

pub(super) mod context_filter;
pub(super) mod error;
pub(super) mod groups;
pub(super) mod sample_filter;
pub(super) mod selection;
pub(super) mod stack_filter;
pub(super) mod time_point;

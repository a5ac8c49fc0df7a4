//! Aggregated samples: trees, tables, threads and states.

pub(super) mod activity;
pub mod call_tree;
pub mod flat_profile;
pub(super) mod idle;
pub(super) mod languages;
pub(super) mod load;
pub(super) mod new_samples;
pub(super) mod processes;
pub(super) mod sample_totals;
pub(super) mod states;
pub(super) mod step_names;
pub(super) mod thread_labels;
pub(super) mod thread_profile;

//! Numbers, times, ids and styles as text.

pub(super) mod date;
pub mod escape;
pub(super) mod module_name;
pub(super) mod number;
pub(super) mod span_id;
pub(super) mod text_style;

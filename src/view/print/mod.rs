//! Text for a terminal or a pipe: trees, tables and summaries.

pub mod first_screen;
mod header_processes;
pub mod hot_functions;
mod hot_path;
pub(super) mod inverted_tree;
pub(super) mod options;
mod share_table;
mod short_header;
pub(super) mod summary;
pub mod summary_screen;
pub mod top_table;
pub mod tree;
pub(super) mod tree_columns;
pub(super) mod tree_rows;
pub(super) mod tree_sections;
pub mod verification;

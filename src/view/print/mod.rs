//! Text for a terminal or a pipe: trees, tables and summaries.

pub mod hot_functions;
pub(super) mod inverted_tree;
pub(super) mod options;
pub(super) mod summary;
pub mod summary_screen;
pub mod top_table;
pub mod tree;
pub(super) mod tree_columns;
pub(super) mod tree_rows;
pub(super) mod tree_sections;
pub mod verification;

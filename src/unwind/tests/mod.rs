//! Tests of the compiled tables.

//! The messages of a pprof profile, as in `profile.proto` of github.com/google/pprof. Fields that
//! traceprof never sets are left out.

use prost::Message;

/// A profile.
#[derive(Clone, PartialEq, Message)]
pub(in crate::view::export) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::view::export) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::view::export) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub(in crate::view::export) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(in crate::view::export) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(in crate::view::export) function: Vec<Function>,
    /// The first is empty. Other fields refer to strings by index.
    #[prost(string, repeated, tag = "6")]
    pub(in crate::view::export) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(in crate::view::export) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(in crate::view::export) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(in crate::view::export) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(in crate::view::export) period: i64,
    #[prost(int64, tag = "14")]
    pub(in crate::view::export) default_sample_type: i64,
}

/// The type of a value, and its unit.
#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::view::export) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(in crate::view::export) kind: i64,
    #[prost(int64, tag = "2")]
    pub(in crate::view::export) unit: i64,
}

/// The samples of one stack and one set of labels.
#[derive(Clone, PartialEq, Message)]
pub(in crate::view::export) struct Sample {
    /// The locations, leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub(in crate::view::export) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(in crate::view::export) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(in crate::view::export) label: Vec<Label>,
}

/// A key with a text or a number.
#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::view::export) struct Label {
    #[prost(int64, tag = "1")]
    pub(in crate::view::export) key: i64,
    #[prost(int64, tag = "2")]
    pub(in crate::view::export) text: i64,
    #[prost(int64, tag = "3")]
    pub(in crate::view::export) number: i64,
}

/// A module.
#[derive(Clone, PartialEq, Message)]
pub(in crate::view::export) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(in crate::view::export) id: u64,
    #[prost(uint64, tag = "2")]
    pub(in crate::view::export) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(in crate::view::export) memory_limit: u64,
    #[prost(int64, tag = "5")]
    pub(in crate::view::export) filename: i64,
    #[prost(int64, tag = "6")]
    pub(in crate::view::export) build_id: i64,
    #[prost(bool, tag = "7")]
    pub(in crate::view::export) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(in crate::view::export) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(in crate::view::export) has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub(in crate::view::export) has_inline_frames: bool,
}

/// An instruction, and the functions that it belongs to.
#[derive(Clone, PartialEq, Message)]
pub(in crate::view::export) struct Location {
    #[prost(uint64, tag = "1")]
    pub(in crate::view::export) id: u64,
    #[prost(uint64, tag = "2")]
    pub(in crate::view::export) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(in crate::view::export) address: u64,
    /// The lines, that of the innermost inlined function first.
    #[prost(message, repeated, tag = "4")]
    pub(in crate::view::export) line: Vec<Line>,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::view::export) struct Line {
    #[prost(uint64, tag = "1")]
    pub(in crate::view::export) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(in crate::view::export) line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Message)]
pub(in crate::view::export) struct Function {
    #[prost(uint64, tag = "1")]
    pub(in crate::view::export) id: u64,
    #[prost(int64, tag = "2")]
    pub(in crate::view::export) name: i64,
    #[prost(int64, tag = "3")]
    pub(in crate::view::export) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(in crate::view::export) filename: i64,
    #[prost(int64, tag = "5")]
    pub(in crate::view::export) start_line: i64,
}

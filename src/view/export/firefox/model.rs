//! The tables of a thread in the processed profile format of the Firefox Profiler, version 55:
//! columns of equal length that refer to each other by index.

use serde::Serialize;
use serde_json::{Map, Value};

/// The version of the format. The profiler upgrades older versions when it loads them.
pub(super) const VERSION: u32 = 55;

/// A thread and everything that its samples refer to.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FirefoxThread {
    pub(super) name: String,
    pub(super) is_main_thread: bool,
    pub(super) pid: String,
    pub(super) tid: String,
    pub(super) process_name: String,
    pub(super) process_type: &'static str,
    /// Milliseconds, like all times.
    pub(super) process_startup_time: f64,
    pub(super) process_shutdown_time: Option<f64>,
    pub(super) register_time: f64,
    pub(super) unregister_time: Option<f64>,
    pub(super) paused_ranges: [(); 0],
    pub(super) show_markers_in_timeline: bool,
    pub(super) samples: SampleTable,
    pub(super) markers: MarkerTable,
    pub(super) stack_table: StackTable,
    pub(super) frame_table: FrameTable,
    pub(super) func_table: FuncTable,
    pub(super) resource_table: ResourceTable,
    pub(super) native_symbols: NativeSymbols,
    pub(super) string_array: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SampleTable {
    pub(super) length: usize,
    pub(super) weight_type: &'static str,
    pub(super) weight: Vec<f64>,
    pub(super) stack: Vec<Option<u32>>,
    pub(super) time_deltas: Vec<f64>,
    /// Microseconds.
    #[serde(rename = "threadCPUDelta")]
    pub(super) thread_cpu_delta: Vec<f64>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MarkerTable {
    pub(super) length: usize,
    pub(super) name: Vec<u32>,
    pub(super) category: Vec<u32>,
    pub(super) phase: Vec<u32>,
    pub(super) start_time: Vec<f64>,
    pub(super) end_time: Vec<f64>,
    pub(super) data: Vec<Map<String, Value>>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StackTable {
    pub(super) length: usize,
    pub(super) prefix: Vec<Option<u32>>,
    pub(super) frame: Vec<u32>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FrameTable {
    pub(super) length: usize,
    /// Addresses in the library, -1 for none.
    pub(super) address: Vec<i64>,
    pub(super) inline_depth: Vec<u32>,
    pub(super) category: Vec<u32>,
    pub(super) subcategory: Vec<u32>,
    pub(super) func: Vec<u32>,
    pub(super) native_symbol: Vec<Option<u32>>,
    #[serde(rename = "innerWindowID")]
    pub(super) inner_window_id: Vec<u32>,
    pub(super) line: Vec<Option<u32>>,
    pub(super) column: Vec<Option<u32>>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FuncTable {
    pub(super) length: usize,
    pub(super) name: Vec<u32>,
    #[serde(rename = "isJS")]
    pub(super) is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    pub(super) relevant_for_js: Vec<bool>,
    /// Indices of resources, -1 for none.
    pub(super) resource: Vec<i64>,
    pub(super) file_name: Vec<Option<u32>>,
    pub(super) line_number: Vec<Option<u32>>,
    pub(super) column_number: Vec<Option<u32>>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceTable {
    pub(super) length: usize,
    pub(super) lib: Vec<u32>,
    pub(super) name: Vec<u32>,
    pub(super) host: Vec<Option<u32>>,
    #[serde(rename = "type")]
    pub(super) kind: Vec<u32>,
}

/// A table that stays empty: the functions are known.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NativeSymbols {
    pub(super) length: usize,
    pub(super) address: [(); 0],
    pub(super) function_size: [(); 0],
    pub(super) lib_index: [(); 0],
    pub(super) name: [(); 0],
}

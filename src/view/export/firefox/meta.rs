//! The metadata of a profile: the recording, its modules, and the schema of markers.

use serde_json::{Value, json};

use super::categories;
use super::model::VERSION;
use super::span_markers::{NAME, ROOT, SPAN, tag_key};
use crate::trace::{Location, Module};
use crate::view::profile::processes::Processes;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::text::escape::escaped;

/// Returns the header of a profile.
pub(super) fn meta(profile: &Profile) -> Value {
    let recording = &profile.recording;
    let period_ns = match profile.mode {
        Mode::Cpu => recording.period_ns(),
        Mode::Wall => recording.number("wall_interval_ns").map(|ns| ns as f64),
    };
    let is_javascript = |it: &Location| categories::is_javascript(it.kind);
    let has_javascript = profile.locations.iter().any(is_javascript);
    json!({
        "version": 24,
        "preprocessedProfileVersion": VERSION,
        "product": Processes::of(profile).subject().unwrap_or_else(|| "traceprof".to_owned()),
        "oscpu": escaped(recording.text("kernel").unwrap_or("Linux")),
        "startTime": recording.number("start_realtime_ns").unwrap_or(0) as f64 / 1e6,
        "interval": period_ns.unwrap_or(1e6) / 1e6,
        "processType": 0,
        "debug": false,
        "symbolicated": true,
        "usesOnlyOneStackType": !has_javascript,
        "sourceCodeIsNotOnSearchfox": true,
        "pausedRanges": [],
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "categories": categories::list(),
        "markerSchema": [schema(recording)],
    })
}

/// Returns the schema of span markers.
fn schema(recording: &RecordingInfo) -> Value {
    let field = |key: &str, label: &str| -> Value {
        json!({ "key": key, "label": label, "format": "string", "searchable": true })
    };
    let mut fields = vec![field(SPAN, "Span"), field(ROOT, "Root span")];
    let keys = recording.tags();
    for index in 0..traceprof_abi::context::TAGS {
        let unnamed = format!("tag {index}");
        let name = keys.get(index).map_or(&unnamed, |key| &key.name);
        fields.push(field(&tag_key(index), &escaped(name)));
    }
    json!({
        "name": NAME,
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "chartLabel": "{marker.data.span}",
        "tooltipLabel": "{marker.data.span}",
        "tableLabel": "{marker.data.span} of {marker.data.root}",
        "fields": fields,
    })
}

/// Returns the modules, by their ids.
pub(super) fn libs(profile: &Profile) -> Value {
    profile.modules.iter().map(lib).collect()
}

fn lib(module: &Module) -> Value {
    let path = escaped(&module.path);
    let name = path.rsplit('/').next().unwrap_or(&path);
    let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let code_id: String = hexadecimal(&module.build_id);
    json!({
        "name": name,
        "path": path,
        "debugName": name,
        "debugPath": path,
        "breakpadId": breakpad_id(&module.build_id),
        "codeId": if code_id.is_empty() { Value::Null } else { code_id.into() },
        "arch": Value::Null,
    })
}

/// Returns the Breakpad id of a module with this build id: a GUID whose first three numbers are
/// little endian, and an age of 0.
fn breakpad_id(build_id: &[u8]) -> String {
    let mut bytes = [0u8; 16];
    for (byte, given) in bytes.iter_mut().zip(build_id) {
        *byte = *given;
    }
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    format!("{digits}0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_modules_are_those_of_breakpad() {
        let build_id = b"\x6d\x5e\x31\x9f\xab\xd6\xbe\xac\xa8\xdd\xa5\x3d\xee\xd3\x03\x4c\x12\x34";
        assert_eq!(breakpad_id(build_id), "9F315E6DD6ABACBEA8DDA53DEED3034C0");
        assert_eq!(breakpad_id(b""), "0".repeat(33));
    }
}

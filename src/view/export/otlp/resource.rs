//! Who was recorded, and where, as the semantic conventions of OpenTelemetry call it: the resource of a
//! process.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Word;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::trace::Value;
use crate::view::escape::escaped;
use crate::view::processes;
use crate::view::profile::Profile;
use crate::view::recording::{Recording, words};

/// What the metadata of what a process tells of itself begins with.
const TOLD: &str = "otel.";
const SERVICE: &str = "service.name";
/// How much of a name the kernel keeps for a process.
const COMM_MAX: usize = 15;

/// The resource of a process.
pub(super) fn of_process(pid: i64, profile: &Profile) -> Resource {
    let recording = &profile.recording;
    let mut attributes = vec![attribute("process.pid", Word::IntValue(pid))];
    attributes.extend(told(recording));
    let command_line = command_line(pid, recording);
    let executable = executable(pid, profile, command_line.first().copied());
    if !attributes.iter().any(|it| it.key == SERVICE) {
        // As the conventions say it of services that do not say what they are.
        let name = executable.as_ref().map_or_else(
            || "unknown_service".to_owned(),
            |executable| format!("unknown_service:{executable}"),
        );
        attributes.push(attribute(SERVICE, Word::StringValue(name)));
    }
    if let Some(executable) = executable {
        attributes.push(attribute("process.executable.name", Word::StringValue(executable)));
    }
    if let Some(command) = command_line.first() {
        let args = command_line.iter().map(|word| text(word)).collect();
        attributes.push(attribute("process.command", text(command)));
        attributes.push(attribute("process.command_args", list(args)));
        attributes.push(attribute("process.command_line", text(&command_line.join(" "))));
    }
    if let Some(host) = recording.text("host") {
        attributes.push(attribute("host.name", text(host)));
    }
    attributes.push(attribute("os.type", Word::StringValue("linux".to_owned())));
    Resource { attributes, ..Resource::default() }
}

/// What the process tells of itself. Of several processes nobody says which of them told it.
fn told(recording: &Recording) -> Vec<KeyValue> {
    if !recording.processes().is_empty() {
        return Vec::new();
    }
    let own = recording.metadata.iter().filter_map(|(key, value)| {
        let name = key.strip_prefix(TOLD)?;
        let value = match value {
            Value::Text(said) => text(said),
            Value::List(_) => list(words(value).into_iter().map(text).collect()),
            _ => return None,
        };
        // Those below are ours to say.
        let is_ours = name.starts_with("process.") || ["host.name", "os.type"].contains(&name);
        (!is_ours).then(|| attribute(&escaped(name), value))
    });
    own.collect()
}

/// The words of a process's command line, if the trace has them.
fn command_line(pid: i64, recording: &Recording) -> Vec<&str> {
    let listed = recording.processes();
    if let Some(process) = listed.into_iter().rfind(|it| i64::try_from(it.pid) == Ok(pid)) {
        return process.command_line;
    }
    // What is not listed is of the process that was asked for.
    let is_asked = recording.number("pid").is_some_and(|asked| i64::try_from(asked) == Ok(pid));
    let line = recording.metadata.get("command_line").filter(|_| is_asked);
    line.map(words).unwrap_or_default()
}

/// The name of the file that a process executes. The kernel keeps the begin of it; where the command line
/// goes on with it, that has all.
fn executable(pid: i64, profile: &Profile, command: Option<&str>) -> Option<String> {
    let threads = profile.threads.iter().map(|profile| &profile.thread);
    let names = processes::names(threads, &profile.recording);
    let name = u64::try_from(pid).ok().and_then(|pid| names.get(&pid)).copied().unwrap_or_default();
    let file = command.map(|path| path.rsplit('/').next().unwrap_or(path));
    let name = match file {
        Some(file) if name.is_empty() => file,
        Some(file) if name.len() >= COMM_MAX && file.starts_with(name) => file,
        _ => name,
    };
    (!name.is_empty()).then(|| escaped(name).into_owned())
}

fn text(said: &str) -> Word {
    Word::StringValue(escaped(said).into_owned())
}

fn list(words: Vec<Word>) -> Word {
    let values = words.into_iter().map(|word| AnyValue { value: Some(word) }).collect();
    Word::ArrayValue(ArrayValue { values })
}

fn attribute(key: &str, value: Word) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

//! `record --json`: the result of a recording as one JSON object.
//!
//! # Invariants
//! - Keys keep their names and meanings; later versions may add keys.
//! - There is an object even if the recording failed. Its `exit_code` is that of the command.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde_json::{Map, json};

use crate::cli::exit::{CommandExit, CommandFailure, ExitCode};
use crate::cli::output::{Destination, unwritable};
use crate::record::Summary;
use crate::trace::{Metadata, SavedTrace, Value, index_path};

/// Writes the object to the standard output. `recorded` is `None` if there is no recording.
pub(super) fn write(
    recorded: Option<&Summary>,
    ended: Result<&CommandExit, &CommandFailure>,
) -> Result<(), CommandFailure> {
    let object = object(recorded, ended);
    Destination::Standard.write(|out: &mut dyn Write| {
        serde_json::to_writer(&mut *out, &object).map_err(io::Error::from).map_err(unwritable)?;
        writeln!(out).map_err(unwritable)
    })
}

fn object(
    recorded: Option<&Summary>,
    ended: Result<&CommandExit, &CommandFailure>,
) -> serde_json::Value {
    let (number, meaning) = match ended {
        Ok(exit) if *exit == ExitCode::Ok.into() => (exit.number(), ExitCode::Ok.meaning()),
        Ok(exit) => (exit.number(), "done, with the exit code of the started program"),
        Err(failure) => (failure.code.number(), failure.code.meaning()),
    };
    let mut object = Map::new();
    let mut set = |key: &str, value| object.insert(key.to_owned(), value);
    set("exit_code", json!(number));
    set("meaning", json!(meaning));
    set("reason", json!(ended.err().map(CommandFailure::message)));
    if let Some(summary) = recorded {
        let output = summary.output.as_ref();
        set("pid", json!(summary.pid));
        set("ended", json!(summary.ended));
        set("output", json!(output.map(|path| path.to_string_lossy())));
        let index = output.map(|path| index_path(path));
        set("index", json!(index.as_ref().map(|path| path.to_string_lossy())));
        let parts = summary.parts.0.iter().map(|path| path.to_string_lossy());
        set("parts", json!(parts.collect::<Vec<_>>()));
        set("parts_written", json!(summary.parts.1));
        set("saved", json!(summary.saves.iter().map(saved).collect::<Vec<_>>()));
        set("data_bytes", json!(summary.written.data_bytes));
        set("index_bytes", json!(summary.written.index_bytes));
        set("samples_in_file", json!(summary.written.samples));
        set("collected_bytes", json!(summary.written.collected_bytes));
        set("quality_percent", json!(summary.quality_percent));
        let named = summary.named.iter();
        let named = named.map(|it| (it.language.name().to_lowercase(), json!(it.percent())));
        set("named_percent", named.collect::<Map<_, _>>().into());
        set("command_status", json!(summary.command_status.map(status)));
        set("left_in_target", json!(summary.left));
        set("figures", json!(figures(&summary.figures)));
    }
    object.into()
}

fn status(status: ExitStatus) -> serde_json::Value {
    json!({ "code": status.code(), "signal": status.signal() })
}

fn saved(saved: &SavedTrace) -> serde_json::Value {
    let (written, error) = (saved.outcome.as_ref().ok(), saved.outcome.as_ref().err());
    json!({
        "output": saved.path.to_string_lossy(),
        "samples": written.map(|written| written.samples),
        "data_bytes": written.map(|written| written.data_bytes),
        "error": error,
    })
}

fn figures(metadata: &Metadata) -> BTreeMap<&str, serde_json::Value> {
    metadata.iter().map(|(key, value)| (key.as_str(), figure(value))).collect()
}

fn figure(value: &Value) -> serde_json::Value {
    match value {
        Value::Unsigned(number) => json!(number),
        Value::Text(text) => json!(text),
        Value::List(values) => values.iter().map(figure).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::record::tests::summary;

    #[test]
    fn a_recording_is_reported_with_all_its_figures() {
        let list = Value::List(vec![Value::Unsigned(41_000), Value::Text("x".to_owned())]);
        let figures = [("cpu_time_ns".to_owned(), Value::Unsigned(7)), ("list".to_owned(), list)];
        let summary = Summary { figures: figures.into(), ..summary() };
        let failure = CommandFailure::new(ExitCode::LowQuality, anyhow::anyhow!("too\nlow"));
        let object = object(Some(&summary), Err(&failure));
        let expected = json!({
            "exit_code": 5,
            "meaning": "the recording is done, but its quality is below --fail-under",
            "reason": "too low",
            "pid": 7,
            "ended": null,
            "output": "out.trace",
            "index": "out.trace.idx",
            "parts": [],
            "parts_written": 0,
            "saved": [],
            "data_bytes": 0,
            "index_bytes": 0,
            "samples_in_file": 0,
            "collected_bytes": 0,
            "quality_percent": 90.0,
            "named_percent": { "python": 75.0 },
            "command_status": { "code": 3, "signal": null },
            "left_in_target": [],
            "figures": { "cpu_time_ns": 7, "list": [41_000, "x"] },
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn a_refusal_is_reported_too() {
        let failure =
            CommandFailure::new(ExitCode::TargetGone, anyhow::anyhow!("process 7 has exited"));
        let expected = json!({
            "exit_code": 7,
            "meaning": "the target exited before there was any data",
            "reason": "process 7 has exited",
        });
        assert_eq!(object(None, Err(&failure)), expected);
        assert_eq!(object(None, Ok(&ExitCode::Ok.into()))["exit_code"], 0);
        let exit = CommandExit::of_command(ExitStatus::from_raw(9));
        assert_eq!(object(None, Ok(&exit))["exit_code"], 137);
    }
}

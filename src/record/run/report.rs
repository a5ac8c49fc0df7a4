//! The closing report of a recording.

use std::path::{Path, PathBuf};

use crate::record::contract::error::RecordError;
use crate::record::contract::options::{Files, Options};
use crate::record::contract::summary::Summary;
use crate::record::run::accounting::{LOST, NONE};
use crate::record::run::brief;
use crate::record::run::ended_process::EndedProcess;
use crate::record::run::ended_recording::EndedRecording;
use crate::record::run::running_program::{Recorded, command};
use crate::record::write::writer::Closed;
use crate::trace::{NOT_WRITTEN, SavedTrace, TraceError, Value, WriteMode, Written};

/// Closes the trace and sums up.
pub(crate) fn conclude(over: EndedRecording, options: &Options) -> Result<Recorded, RecordError> {
    let accounting = over.accounting();
    let mut metadata = accounting.metadata();
    // The trace ends with the sampling, not with the work after it.
    let end_ns = over.program_run.times_ns.1;
    metadata.insert("end_monotonic_ns".to_string(), Value::Unsigned(end_ns));
    let wall = accounting.totals.wall;
    let samples = accounting.totals.samples + wall.0;
    let rooted = accounting.rooted() + wall.1;
    let quality_percent = rooted as f64 * 100.0 / samples.max(1) as f64;
    let named = accounting.totals.managed.shares();
    let nothing = (samples == 0).then(|| accounting.no_samples_reason());
    let reason = over.reason();
    let died = over.ended.iter().find_map(EndedProcess::death);
    let [mut text, mut brief] = lines(&over);
    metadata.extend(over.process_metadata());
    let (pid, left) = over.left();
    if options.verify_detach {
        metadata.insert("left_in_target".to_string(), Value::Unsigned(left.len() as u64));
    }
    let mut finished = over.finished;
    if matches!(options.files, Files::Ring { at_end: false, .. }) && !over.is_save_pending {
        finished.drop_rest();
    }
    let closed = finished.close(metadata.clone(), &over.program_run.heaviest);
    let Closed { written, parts, saves, is_dropped, error } = closed;
    let (command_status, running) = command(over.ended)?;
    let last = saves.last().map(|saved| &saved.path).or(parts.0.last());
    let output = last.or((!is_dropped).then_some(&options.output)).cloned();
    if let Some(output) = &output {
        text.extend(files(&written, (options, output), &parts));
    }
    let mut last: Vec<_> = saves.iter().map(saved).collect();
    last.extend(ring_at_end(options, (is_dropped, saves.is_empty()), error.is_some()));
    if let Some(TraceError::CutShort { lost_samples, .. }) = &error {
        note_unwritten(&mut text, *lost_samples);
        brief.retain(|(label, _)| label != LOST);
        brief.extend(text.iter().find(|(label, _)| label == LOST).cloned());
        metadata.insert(NOT_WRITTEN.to_string(), Value::Unsigned(*lost_samples));
        let all = written.samples + lost_samples;
        let kept = format!("{} of {all} samples are in the trace", written.samples);
        last.push(("cut short".to_string(), kept));
    }
    brief.extend(last.iter().cloned());
    brief.extend(output.iter().map(|output| brief::written(output, &written)));
    text.extend(last);
    let cut_short = error.map(|error| error.to_string());
    let summary = Summary {
        text,
        brief,
        samples,
        rooted,
        command_status,
        output,
        written,
        parts,
        saves,
        figures: metadata,
        ended: reason,
        cut_short,
        died,
        pid,
        left,
        nothing,
        quality_percent,
        named,
    };
    Ok(Recorded { summary, running })
}

/// Returns the lines of the complete report and of the short one, but for those about the files.
fn lines(over: &EndedRecording) -> [Vec<(String, String)>; 2] {
    let mut text = over.accounting().lines();
    if over.is_several() {
        // `process_lines` lists executed programs with their processes.
        text.retain(|(label, _)| label != "executed");
        text.extend(over.process_lines());
        text.extend(over.outlived().map(|reason| ("ended".to_string(), reason)));
    } else {
        text.extend(over.ended.iter().flat_map(why));
        let residues = over.residues.iter().flatten();
        text.extend(residues.map(|it| ("verified".to_string(), it.text().to_string())));
    }
    let brief = brief::lines(over, &text);
    [text, brief]
}

/// Adds the samples that could not be written to the report's line about lost samples.
fn note_unwritten(lines: &mut [(String, String)], lost: u64) {
    let line = lines.iter_mut().find(|(label, _)| label == LOST);
    if let Some((_, text)) = line.filter(|_| lost > 0) {
        let others = if text == NONE { String::new() } else { format!("{text}, ") };
        *text = format!("{others}{lost} (not written)");
    }
}

/// Returns what happened to the ring's parts at the end, if they were not saved.
fn ring_at_end(
    options: &Options,
    (is_dropped, none_saved): (bool, bool),
    has_failed: bool,
) -> Option<(String, String)> {
    let text = if is_dropped {
        let why =
            if none_saved { "no save was requested" } else { "no further save was requested" };
        format!("dropped at the end: {why} (--ring-save trigger)")
    } else if matches!(options.files, Files::Ring { .. }) && has_failed {
        format!("its parts are left in {}", options.ring_directory().display())
    } else {
        return None;
    };
    Some(("ring".to_string(), text))
}

/// Returns the line about a saved part of a ring.
fn saved(saved: &SavedTrace) -> (String, String) {
    let path = saved.path.display();
    let text = match &saved.outcome {
        Ok(Written { samples, data_bytes, .. }) => {
            format!("{path}: {samples} samples, {data_bytes} bytes")
        }
        Err(error) => format!("failed: {error}"),
    };
    ("saved".to_string(), text)
}

/// Returns the lines about the files.
fn files(
    written: &Written,
    (options, output): (&Options, &Path),
    (kept, begun): &(Vec<PathBuf>, u32),
) -> Vec<(String, String)> {
    let Written { data_bytes: data, index_bytes: index, samples, collected_bytes, .. } = *written;
    let per_sample = match samples {
        0 => String::new(),
        _ => format!(" ({:.1} per sample)", (data + index) as f64 / samples as f64),
    };
    let path = output.display();
    let name = |path: &PathBuf| path.display().to_string();
    let of_parts = match (kept.first().map(name), kept.last().map(name)) {
        (Some(first), Some(last)) => {
            let count = kept.len();
            let one = if count == 1 { last } else { format!("{first} to {last}") };
            Some(format!("{begun} written, {count} kept: {one}"))
        }
        _ => None,
    };
    let of_parts = of_parts.map(|text| ("parts".to_string(), text));
    let collected = (options.writer.mode == WriteMode::Collect)
        .then(|| format!("{collected_bytes} bytes held the samples until the end"));
    let files = match of_parts {
        Some(_) => format!("{data} bytes, indexes: {index} bytes{per_sample}"),
        None => format!("{path}: {data} bytes, {path}.idx: {index} bytes{per_sample}"),
    };
    let collected = collected.map(|text| ("memory".to_string(), text));
    let unsorted = written.unsorted.as_ref().map(|why| ("index".to_string(), why.to_string()));
    let written = [("written".to_string(), files)];
    collected.into_iter().chain(written).chain(of_parts).chain(unsorted).collect()
}

/// Returns why the recording of a process ended, unless the user ended it, and what is left behind.
fn why(ended: &EndedProcess) -> Vec<(String, String)> {
    let reason = ended.reason().map(|reason| ("ended".to_string(), reason));
    let residue = ended
        .program_run
        .detached
        .residue
        .iter()
        .map(|text| ("left behind".to_string(), text.clone()));
    reason.into_iter().chain(residue).collect()
}

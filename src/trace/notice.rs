//! Notices for the user about the state of a data file.

use super::frames::FramesEnd;
use super::loss::{BadRange, Loss};

/// Returns the notices about damage and about the end of the file.
pub(super) fn notices(bad: &[BadRange], losses: &[Loss], end: Option<&FramesEnd>) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(first) = bad.first() {
        let bytes: u64 = bad.iter().map(|range| range.bytes).sum();
        let known = losses.iter().filter_map(|loss| loss.samples);
        let samples = known.fold(0u64, u64::saturating_add);
        let unknown = losses.iter().any(|loss| loss.samples.is_none());
        let samples = match (samples, unknown) {
            (0, true) => "with an unknown number of samples".to_owned(),
            (samples, true) => format!("with at least {samples} samples"),
            (samples, false) => format!("with {samples} samples"),
        };
        let place = match bad.len() {
            1 => "at".to_owned(),
            ranges => format!("in {ranges} ranges from"),
        };
        let BadRange { offset, what, .. } = first;
        notices.push(format!(
            "the trace is damaged: {bytes} bytes {place} offset {offset} are lost ({what}), \
             {samples}"
        ));
    }
    notices.extend(end.and_then(FramesEnd::notice));
    notices
}

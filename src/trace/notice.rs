//! What a user is told of a data file's state.

use super::frames::End;
use super::loss::{BadRange, Loss};

/// Of what is damaged, and of how the file ends.
pub(super) fn notices(bad: &[BadRange], losses: &[Loss], end: Option<&End>) -> Vec<String> {
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
            places => format!("in {places} places from"),
        };
        let BadRange { offset, what, .. } = first;
        notices.push(format!(
            "the trace is damaged: {bytes} bytes {place} offset {offset} are lost ({what}), \
             {samples}"
        ));
    }
    notices.extend(end.and_then(End::notice));
    notices
}

//! The mark of a page, by which `view` knows the pages that it made itself.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

/// The length of the part of a page that has its mark.
const HEAD_BYTES: u64 = 512;

/// Returns the mark of the pages of a trace. It depends on the trace's name only, so that a newer
/// recording of the same name has the same mark. The name itself may look like markup.
pub(super) fn mark_of(trace: &Path) -> String {
    let name = trace.file_name().unwrap_or_default();
    let digest = Sha256::digest(name.as_encoded_bytes());
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("traceprof page {digits}")
}

/// Returns whether a file is a page that traceprof made from a trace of this name.
pub fn is_page_of(page: &Path, trace: &Path) -> bool {
    let mut head = Vec::new();
    let is_read = page.metadata().is_ok_and(|meta| meta.is_file())
        && File::open(page).is_ok_and(|file| file.take(HEAD_BYTES).read_to_end(&mut head).is_ok());
    let mark = format!("<meta name=\"generator\" content=\"{}\">", mark_of(trace));
    is_read && head.windows(mark.len()).any(|part| part == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_page_is_known_by_the_name_of_its_trace_and_other_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("page.html");
        let mark = mark_of(Path::new("/one/out.trace"));
        let text = format!("<html><head>\n<meta name=\"generator\" content=\"{mark}\">\n");
        fs::write(&page, text).unwrap();
        assert!(is_page_of(&page, Path::new("/two/out.trace")));
        assert!(!is_page_of(&page, Path::new("/one/other.trace")));
        fs::write(&page, format!("<p>{mark}</p>")).unwrap();
        assert!(!is_page_of(&page, Path::new("out.trace")));
        assert!(!is_page_of(dir.path(), Path::new("out.trace")));
        assert!(!is_page_of(&dir.path().join("none"), Path::new("out.trace")));
    }
}

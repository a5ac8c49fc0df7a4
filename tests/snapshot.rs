//! Compares complete outputs with files. `UPDATE=1` rewrites the files.

use std::fs;
use std::path::Path;

/// Checks `actual` against the file at `path` in the repository.
pub(crate) fn check(path: &str, actual: &[u8]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, actual).unwrap();
        return;
    }
    let expected = fs::read(&file).unwrap_or_default();
    if expected == actual {
        return;
    }
    let (expected, actual) = (String::from_utf8_lossy(&expected), String::from_utf8_lossy(actual));
    let line = expected.lines().zip(actual.lines()).take_while(|(a, b)| a == b).count();
    panic!(
        "{path} differs from line {} on (UPDATE=1 writes it anew)\n--- expected\n{expected}\n--- \
         got\n{actual}",
        line + 1
    );
}

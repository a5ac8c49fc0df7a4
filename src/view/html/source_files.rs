//! The source files that a page shows, from a directory that the user names.
//!
//! # Invariants
//! - Only regular files below the directory are read, whatever a trace names: neither `..` nor a
//!   link leads out of it.
//! - A page has at most [`TEXTS_MAX`] bytes of them, of the heaviest files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use crate::view::text::escape::escaped;

/// Maximum number of bytes of all files together.
const TEXTS_MAX: u64 = 4 << 20;
/// Maximum number of bytes of a file. Larger ones are generated, as a rule.
const FILE_MAX: u64 = 1 << 20;

/// Returns the texts of those files that are below the directory, by their numbers. The heaviest
/// files come first in `files`, each with its number and the name in the trace.
pub(super) fn source_texts(dir: &Path, files: &[(usize, &str)]) -> BTreeMap<usize, String> {
    let mut texts = BTreeMap::new();
    let mut room = TEXTS_MAX;
    let Ok(dir) = dir.canonicalize() else { return texts };
    for (number, name) in files {
        let Some(text) = find(&dir, name).and_then(|path| read(&path, room.min(FILE_MAX))) else {
            continue;
        };
        room -= text.len() as u64;
        texts.insert(*number, String::from_utf8_lossy(&text).into_owned());
    }
    texts
}

/// Returns what to tell the user if no file was found.
pub(super) fn none_found(dir: &Path, files: &[(usize, &str)]) -> String {
    let dir = dir.display().to_string();
    let dir = escaped(&dir);
    match files.first() {
        Some((_, name)) => {
            format!("the page has no source: {dir} has none of the recorded files, such as {name}")
        }
        None => "the page has no source: no function of the trace has a file and a line".to_owned(),
    }
}

/// Returns the file below the directory whose path has the most in common with the end of a name.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let parts: Vec<_> = Path::new(name).components().collect();
    let after = parts.iter().rposition(|part| *part == Component::ParentDir).map_or(0, |it| it + 1);
    let parts = parts.get(after..)?.iter().filter_map(|part| match part {
        Component::Normal(part) => Some(*part),
        _ => None,
    });
    let parts: Vec<_> = parts.collect();
    (0..parts.len()).find_map(|begin| {
        let path = dir.join(parts.iter().skip(begin).collect::<PathBuf>()).canonicalize().ok()?;
        (path.starts_with(dir) && path.is_file()).then_some(path)
    })
}

/// Returns the content of a file unless it is longer than `most`.
fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(most + 1).read_to_end(&mut text).ok()?;
    (text.len() as u64 <= most).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_found_by_the_end_of_their_names_and_only_below_the_directory() {
        let all = tempfile::tempdir().unwrap();
        let dir = all.path().join("source");
        fs::create_dir_all(dir.join("src/part")).unwrap();
        fs::write(dir.join("src/part/a.c"), "deep").unwrap();
        fs::write(dir.join("a.c"), "flat").unwrap();
        fs::write(dir.join("large.c"), vec![b'x'; FILE_MAX as usize + 1]).unwrap();
        fs::write(all.path().join("secret"), "secret").unwrap();
        symlink(all.path().join("secret"), dir.join("link.c")).unwrap();
        let secret = all.path().join("secret");
        let files = [
            "/build/x/src/part/a.c",
            "a.c",
            "../lib/a.c",
            "other.c",
            "large.c",
            "link.c",
            "../secret",
            secret.to_str().unwrap(),
            "src",
        ];
        let files: Vec<_> = files.into_iter().enumerate().collect();
        let texts = source_texts(&dir, &files);
        let texts: Vec<_> = texts.iter().map(|(number, text)| (*number, text.as_str())).collect();
        assert_eq!(texts, [(0, "deep"), (1, "flat"), (2, "flat")]);
        assert!(source_texts(&all.path().join("none"), &files).is_empty());
    }

    #[test]
    fn the_heaviest_files_have_the_room() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..6 {
            fs::write(dir.path().join(format!("{number}.c")), vec![b'x'; 1 << 20]).unwrap();
        }
        let names = ["5.c", "4.c", "3.c", "2.c", "1.c", "0.c"];
        let files: Vec<_> = (1..).zip(names).collect();
        let numbers: Vec<_> = source_texts(dir.path(), &files).into_keys().collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
    }
}

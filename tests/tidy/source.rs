//! The files of the tree, and Rust text without comments and literals.

use std::fs;
use std::path::Path;

/// A text file. The path is relative to the top of the tree.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
}

impl Source {
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns the text with comments and literals blanked out, line by line.
    pub(super) fn code(&self) -> String {
        strip(&self.text)
    }
}

/// Returns every file that belongs to the project.
pub(super) fn tree() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    collect(root, root, &mut found);
    found
}

fn collect(root: &Path, dir: &Path, found: &mut Vec<Source>) {
    for entry in
        fs::read_dir(dir).expect("a directory of the tree").map(|entry| entry.expect("entry"))
    {
        let path = entry.path();
        let name = entry.file_name();
        let kind = entry.file_type().expect("type of a file");
        if kind.is_dir() {
            // Leaves out the history and build output, which is in `target` or marked by cargo.
            // Other dot directories belong to the project.
            let is_output = dir == root && name == "target" || path.join("CACHEDIR.TAG").exists();
            if !is_output && name != ".git" {
                collect(root, &path, found);
            }
        } else if kind.is_file()
            && name != "Cargo.lock"
            && name != ".git"
            && let Ok(bytes) = fs::read(&path)
        {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let path = path.strip_prefix(root).expect("below the root");
            found.push(Source { path: path.to_string_lossy().into_owned(), text });
        }
    }
}

/// Blanks comments, strings and character literals of Rust text.
fn strip(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = literal_or_comment(rest, out.chars().next_back());
        if skipped == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            out.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        }
    }
    out
}

/// Returns the length of the literal or comment that `text` starts with, or 0 if it starts with
/// neither.
fn literal_or_comment(text: &str, before: Option<char>) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment(text);
    }
    if text.starts_with('"') {
        return quoted(text, 1);
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if text.starts_with('r') && !in_word {
        return raw_string(text);
    }
    if text.starts_with('\'') { character(text) } else { 0 }
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_u32, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn quoted(text: &str, start: usize) -> usize {
    let mut escaped = false;
    for (at, c) in text[start..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return start + at + 1,
            _ => {}
        }
    }
    text.len()
}

fn raw_string(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|&c| c == '#').count();
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = 2 + hashes;
    text[body..].find(&end).map_or(text.len(), |at| body + at + end.len())
}

/// Returns the length of a character literal, but not of a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    let Some((_, first)) = chars.next() else { return 0 };
    if first == '\\' {
        return text[2..]
            .char_indices()
            .skip(1)
            .find(|&(_, c)| c == '\'')
            .map_or(0, |(at, _)| at + 3);
    }
    match chars.next() {
        Some((at, '\'')) => at + 1,
        _ => 0,
    }
}

/// Returns the byte offsets at which `word` occurs in the code as a complete identifier.
pub(super) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_nothing_else() {
        for (text, kept) in [
            ("a // crate::b\nc", "a c"),
            ("a /* x /* y */ z */ b", "a b"),
            (r#"f("crate::x \" y", z)"#, "f( , z)"),
            (r##"r#"crate::x " y"# + 1"##, " + 1"),
            ("fn f<'a>(x: &'a str) -> char { 'b' }", "fn f<'a>(x: &'a str) -> char { }"),
            ("'\\n' + '\\'' + x", " + + x"),
            ("let var = \"é\"; b", "let var = ; b"),
        ] {
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&strip(text)), words(kept), "{text}");
            assert_eq!(strip(text).lines().count(), text.lines().count());
        }
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(words("clap clap_x xclap clap::y", "clap").count(), 2);
    }

    #[test]
    fn tree_holds_this_file_and_no_build_output() {
        let tree = tree();
        assert!(tree.iter().any(|file| file.path == "tests/tidy/source.rs"));
        assert!(!tree.iter().any(|file| file.path.starts_with("target/")));
    }
}

//! Addresses in maps and in generated files: those of maps and of original files.
//!
//! They are addresses of the web: relative to the file that names them, and encoded.

use std::path::{Component, Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use crate::text::file_url::decoded;
use crate::text::{printable, quotable};

/// How the encoding of data ends that is not text.
const BASE64: &str = ";base64";

/// Where a map is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MapAddress {
    /// At one of these paths: the first one that exists.
    At(Vec<PathBuf>),
    /// In the address itself.
    Inline(String),
}

impl MapAddress {
    /// Reads the address of a map that a generated file names.
    pub(super) fn of(generated: &Path, url: &str) -> Result<Self, String> {
        if let Some(data) = url.strip_prefix("data:") {
            return inline(data).map(Self::Inline);
        }
        let named = |path: &str| generated.parent().unwrap_or(generated).join(path);
        let path = match file_path(url) {
            Some(path) => path,
            None if has_scheme(url) => {
                return Err(format!("its source map is not a file: {}", quotable(url)));
            }
            None => url,
        };
        // Some tools do not encode what they write, and servers get the version behind the path.
        let bare = path.split_once(['?', '#']).map(|(bare, _)| bare);
        let texts = [Some(path), bare].into_iter().flatten();
        let texts = texts.flat_map(|text| [decoded(text), Some(text.to_owned())]);
        let mut paths: Vec<PathBuf> = texts.flatten().map(|path| named(&path)).collect();
        paths.dedup();
        Ok(Self::At(paths))
    }
}

fn inline(data: &str) -> Result<String, String> {
    let (parameters, text) = data.split_once(',').unwrap_or((data, ""));
    if !parameters.starts_with("application/json") {
        return Err("its source map is in no known encoding".to_owned());
    }
    if !parameters.ends_with(BASE64) {
        return decoded(text).ok_or_else(|| "its source map is not UTF-8".to_owned());
    }
    let bytes = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text));
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| "its source map is not base64".to_owned())
}

/// Returns the path of an original file, decoded. Its address, as it is, if it is elsewhere: a file
/// of Windows is. `map` is the path of the map.
pub(super) fn source_path(map: &Path, root: &str, source: &str) -> String {
    let separator = if root.is_empty() || root.ends_with('/') { "" } else { "/" };
    let whole = format!("{root}{separator}{source}");
    let is_whole = source.starts_with('/') || has_scheme(source) || is_of_windows(source);
    let address = if is_whole { source } else { &whole };
    let path = file_path(address);
    if path.is_none() && has_scheme(address) || is_of_windows(path.unwrap_or(address)) {
        return printable(address);
    }
    let path = path.unwrap_or(address);
    let decoded = decoded(path);
    let mut place = PathBuf::new();
    let whole = map.parent().unwrap_or(map).join(decoded.as_deref().unwrap_or(path));
    for part in whole.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(place.pop()),
            part => place.push(part),
        }
    }
    printable(&place.to_string_lossy())
}

/// Returns the path in the address of a file of this machine, as it is encoded.
fn file_path(address: &str) -> Option<&str> {
    let path = address.strip_prefix("file:")?;
    let path = match path.strip_prefix("//") {
        Some(path) => path.strip_prefix("localhost").unwrap_or(path),
        None => path,
    };
    path.starts_with('/').then_some(path)
}

/// Returns whether an address begins with a scheme, such as `webpack:`. So does one with a drive of
/// Windows.
fn has_scheme(address: &str) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|it: char| it.is_ascii_alphabetic())
            && scheme.bytes().all(|it| it.is_ascii_alphanumeric() || b"+-.".contains(&it))
    };
    address.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// Returns whether a path is one of Windows: it has a drive, or its parts are separated so.
fn is_of_windows(path: &str) -> bool {
    let path = path.strip_prefix('/').unwrap_or(path);
    let has_drive = matches!(path.as_bytes(), [drive, b':', ..] if drive.is_ascii_alphabetic());
    has_drive || path.contains('\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_beside_files_or_inside() {
        let of = |url: &str| MapAddress::of(Path::new("/d/a.js"), url);
        let at = |paths: &[&str]| Ok(MapAddress::At(paths.iter().map(PathBuf::from).collect()));
        assert_eq!(of("a.js.map"), at(&["/d/a.js.map"]));
        assert_eq!(of("a%20b/gr%C3%B6.map"), at(&["/d/a b/grö.map", "/d/a%20b/gr%C3%B6.map"]));
        assert_eq!(of("file:///m/a%20b.map"), at(&["/m/a b.map", "/m/a%20b.map"]));
        assert_eq!(of("file://localhost/a.map"), at(&["/a.map"]));
        assert_eq!(of("100%.map"), at(&["/d/100%.map"]));
        assert_eq!(of("%ff.map"), at(&["/d/%ff.map"]));
        assert_eq!(of("a.map?v=1"), at(&["/d/a.map?v=1", "/d/a.map"]));
        assert_eq!(of("a%20b#c"), at(&["/d/a b#c", "/d/a%20b#c", "/d/a b", "/d/a%20b"]));
        let inline = |text: &str| Ok(MapAddress::Inline(text.to_owned()));
        assert_eq!(of("data:application/json;base64,e30="), inline("{}"));
        assert_eq!(of("data:application/json;charset=utf-8;base64,e30"), inline("{}"));
        assert_eq!(of("data:application/json,%7B%7d"), inline("{}"));
        for url in ["data:text/plain,x", "data:", "file://host/a.map", "http:a.map", "C:/a.map"] {
            assert!(of(url).is_err(), "{url}");
        }
        let long = of(&format!("data:text/plain,{}", "x".repeat(5 << 20))).unwrap_err();
        assert!(long.len() < 200, "{}", long.len());
        assert!(of(&format!("http://{}", "x".repeat(5 << 20))).unwrap_err().len() < 200);
    }

    #[test]
    fn originals_are_files_here_or_elsewhere() {
        for (root, source, expected) in [
            ("", "../x.ts", "/d/x.ts"),
            ("../src/", "./x.ts", "/d/src/x.ts"),
            ("/r", "x.ts", "/r/x.ts"),
            ("", "../../../../x.ts", "/x.ts"),
            ("", "../a%20b/gr%C3%B6%c3%9Fe.ts", "/d/a b/größe.ts"),
            ("", "100%/%2x.ts", "/d/out/100%/%2x.ts"),
            ("", "%ff.ts", "/d/out/%ff.ts"),
            ("ignored", "file:///a/x%20y.ts", "/a/x y.ts"),
            ("ignored", "file:/a/x.ts", "/a/x.ts"),
            ("file:///a%20b", "x.ts", "/a b/x.ts"),
            ("", "webpack://app/./x%20y.ts", "webpack://app/./x%20y.ts"),
            ("", "webpack:x.ts", "webpack:x.ts"),
            ("webpack://app", "x.ts", "webpack://app/x.ts"),
            ("", "file://host/x.ts", "file://host/x.ts"),
            ("ignored", "C:\\src\\x.ts", "C:\\src\\x.ts"),
            ("ignored", "c:/src/x.ts", "c:/src/x.ts"),
            ("C:\\src", "x.ts", "C:\\src/x.ts"),
            ("", "file:///C:/src/x.ts", "file:///C:/src/x.ts"),
            ("ignored", "..\\src\\x.ts", "..\\src\\x.ts"),
            ("", "a\nb.ts", "/d/out/a?b.ts"),
        ] {
            assert_eq!(source_path(Path::new("/d/out/a.js.map"), root, source), expected);
        }
        let long = source_path(Path::new("/d/out/a.js.map"), "", &"x".repeat(9000));
        assert_eq!(long.len(), crate::text::LENGTH_MAX);
    }
}

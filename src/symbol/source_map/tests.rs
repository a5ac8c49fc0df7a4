//! Maps that are made by hand, and bad ones.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A generated file whose map says: `a` is `first` of x.ts, line 1; what it returns is of line 2;
/// the function that `b` is assigned has no name in the map; the method `c` has, in y.ts.
const TEXT: &str = "var ü=1;function a(q){return q}var b=async(q)=>q,d={c(q){return q}};";
/// Columns in the text from 0 on, and what is there.
const HEAD: [(&str, u32); 6] =
    [("function a", 8), ("a(", 17), ("return", 22), ("b=", 35), ("(q)=>", 42), ("c(q)", 52)];

/// Encodes numbers as maps do.
fn encoded(numbers: &[i64]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for number in numbers {
        let mut rest = number.unsigned_abs() << 1 | u64::from(*number < 0);
        loop {
            let digit = rest & 31;
            rest >>= 5;
            let more = if rest > 0 { 32 } else { 0 };
            text.push(char::from(DIGITS[(digit | more) as usize]));
            if rest == 0 {
                break;
            }
        }
    }
    text
}

fn map() -> String {
    // Each is relative to the one before.
    let segments: [&[i64]; 6] = [
        &[8, 0, 0, 4],
        &[9, 0, 0, 9, 0],
        &[5, 0, 1, -11],
        &[13, 0, 5, 0],
        &[7, 0, 0, 9],
        &[10, 1, 3, -5, 1],
    ];
    let mappings: Vec<String> = segments.iter().map(|it| encoded(it)).collect();
    let mappings = mappings.join(",");
    format!(
        r#"{{"version":3,"sourceRoot":"src","sources":["x.ts","../lib/./y.ts"],
        "names":["first","second"],"mappings":"{mappings}"}}"#
    )
}

struct Files(TempDir);

impl Files {
    /// Writes a generated file that names this map, and files beside it.
    fn of(url: &str, beside: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.js"), format!("{TEXT}\n//# sourceMappingURL={url}\n"))
            .unwrap();
        for (name, text) in beside {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self) -> Result<SourceMap, String> {
        SourceMap::of(&self.path("a.js"))
    }
}

fn at(column: u32) -> GeneratedPlace {
    GeneratedPlace { line: 1, column: column + 1 }
}

/// Checks what a map says.
fn check(files: &Files) {
    let map = files.read().unwrap();
    let [x, y] = ["src/x.ts", "lib/y.ts"].map(|it| files.path(it).to_string_lossy().into_owned());
    let place = |column| map.place(at(column)).map(|it| (it.file.to_owned(), it.line, it.column));
    for (text, column) in HEAD {
        let units: Vec<u16> = TEXT.encode_utf16().collect();
        let found = String::from_utf16_lossy(&units[column as usize..]);
        assert!(found.starts_with(text), "{text}: {found}");
    }
    assert_eq!(place(7), None);
    assert_eq!(place(8), Some((x.clone(), 1, 5)));
    assert_eq!(place(18), Some((x.clone(), 1, 14)));
    assert_eq!(place(29), Some((x.clone(), 2, 3)));
    let function = |column, name| {
        let found = map.function(at(column), name)?;
        Some((found.file.to_owned(), found.line, found.name.map(str::to_owned)))
    };
    let named = |file: &str, line, name: &str| Some((file.to_owned(), line, Some(name.to_owned())));
    assert_eq!(function(18, "a"), named(&x, 1, "first"));
    // Another name in front is not that of the function, and its mapping not the function's.
    assert_eq!(function(18, "z"), None);
    assert_eq!(function(42, "b"), Some((x.clone(), 7, None)));
    assert_eq!(function(42, "o.b"), Some((x, 7, None)));
    assert_eq!(function(53, "d.c"), named(&y, 10, "second"));
    // Places that are not there.
    assert!(map.has(at(0)) && map.has(at(67)));
    for (line, column) in [(0, 1), (1, 0), (1, 70), (9, 1), (u32::MAX, u32::MAX)] {
        let place = GeneratedPlace { line, column };
        assert!(!map.has(place) && map.function(place, "a").is_none(), "{place:?}");
        assert!(column == 70 || map.place(place).is_none(), "{place:?}");
    }
    assert_eq!(map.sources(), 2);
}

#[test]
fn places_and_functions_have_their_originals() {
    check(&Files::of("a.js.map", &[("a.js.map", &map())]));
    check(&Files::of("a.js.map", &[("a.js.map", &format!(")]}}'\n{}", map()))]));
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(map());
    check(&Files::of(&format!("data:application/json;charset=utf-8;base64,{text}"), &[]));
}

#[test]
fn what_is_wrong_is_said() {
    let said =
        |url: &str, map: &str| Files::of(url, &[("a.js.map", map)]).read().expect_err("a bad map");
    for (url, map, expected) in [
        ("b.map", "", "No such file"),
        (".", "", "not a file"),
        ("https://host/a.map", "", "not a file: https"),
        ("data:application/json,{}", "", "no known encoding"),
        ("data:application/json;base64,!!", "", "not base64"),
        ("data:application/json;base64,e30=", "", "missing field"),
        ("a.js.map", "", "EOF"),
        ("a.js.map", "{\"version\":2,\"sources\":[],\"mappings\":\"\"}", "version"),
        ("a.js.map", "{\"version\":3,\"sources\":[],\"mappings\":\"AAAA\"}", "source"),
        ("a.js.map", "{\"version\":3,\"sources\":[],\"sections\":[]}", "missing field"),
    ] {
        let what = said(url, map);
        assert!(what.contains(expected), "{url}: {what}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.js");
    assert!(SourceMap::of(&path).unwrap_err().contains("No such file"));
    for text in ["", "a()", "s='//# sourceMappingURL=a.map'", "//# sourceMappingURL=\n"] {
        fs::write(&path, text).unwrap();
        assert_eq!(SourceMap::of(&path).unwrap_err(), "names no source map", "{text}");
    }
    fs::write(&path, [0xff]).unwrap();
    assert_eq!(SourceMap::of(&path).unwrap_err(), "not UTF-8");
    // A device that would never end.
    assert_eq!(SourceMap::of(Path::new("/dev/zero")).unwrap_err(), "not a file");
}

#[test]
fn sources_that_would_fill_the_memory_are_refused() {
    let read = |root: usize, sources: usize| {
        let (root, sources) = ("r".repeat(root), vec![r#""x""#; sources].join(","));
        let text = format!(
            r#"{{"version":3,"sourceRoot":"{root}","sources":[{sources}],"mappings":"AAAA"}}"#
        );
        Mappings::of(&text, Path::new("/a.js.map")).map(|_| ())
    };
    assert_eq!(read(4000, 1000), Ok(()));
    assert!(read(4000, 5000).unwrap_err().contains("too many"));
    assert!(read(0, 300_000).unwrap_err().contains("too many"));
}

#[test]
fn originals_elsewhere_keep_their_addresses() {
    let source = |root: &str, source: &str| {
        let text = format!(
            r#"{{"version":3,"sourceRoot":"{root}","sources":["{source}"],"mappings":"AAAA"}}"#
        );
        let mappings = Mappings::of(&text, Path::new("/d/out/a.js.map")).unwrap();
        mappings.last_until(at(0), 1).unwrap().file.to_owned()
    };
    assert_eq!(source("", "../x.ts"), "/d/x.ts");
    assert_eq!(source("../src/", "./x.ts"), "/d/src/x.ts");
    assert_eq!(source("/r", "x.ts"), "/r/x.ts");
    assert_eq!(source("", "../../../../x.ts"), "/x.ts");
    assert_eq!(source("", "webpack://app/./x.ts"), "webpack://app/./x.ts");
    assert_eq!(source("ignored", "file:///a/x.ts"), "/a/x.ts");
    assert_eq!(source("", &"x".repeat(9000)).len(), crate::text::LENGTH_MAX);
}

proptest! {
    #[test]
    fn any_mappings_are_read_or_refused(
        mappings in "[A-Za-z0-9+/,;]{0,200}",
        line in any::<u32>(),
        column in any::<u32>(),
    ) {
        let text = format!(
            r#"{{"version":3,"sources":["x"],"names":["n"],"mappings":"{mappings}"}}"#
        );
        if let Ok(mappings) = Mappings::of(&text, Path::new("/a.map")) {
            for place in [GeneratedPlace { line, column }, at(0), at(column % 64)] {
                mappings.last_until(place, column);
            }
        }
    }

    #[test]
    fn any_text_has_its_places(text in "[a =:*(\r\n\u{2028}😀function]{0,60}", name in "[a😀]?") {
        let text = format!("{text}\n//# sourceMappingURL=x");
        let file = GeneratedFile::of(&text, None).unwrap();
        for line in 0..70 {
            for column in 0..70 {
                let place = GeneratedPlace { line, column };
                let head = file.head(place, &name);
                prop_assert_eq!(head.is_some(), file.before(place).is_some());
                prop_assert!(head.is_none_or(|it| it.start <= column));
            }
        }
    }
}

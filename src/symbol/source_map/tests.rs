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
    let place =
        |column| map.place(at(column), None).map(|it| (it.file.to_owned(), it.line, it.column));
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
        assert!(map.place(place, None).is_none(), "{place:?}");
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
        ("data:text/plain,{}", "", "no known encoding"),
        ("data:application/json,{}", "", "missing field"),
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
    assert!(read(4000, 20_000).unwrap_err().contains("more than 64 MiB"));
    assert!(read(0, 2_000_000).unwrap_err().contains("more than 64 MiB"));
}

/// Reads a map with these lists and mappings, which is beside `/d/a.js`.
fn mappings_of(lists: &str, mappings: &str) -> Result<Mappings, String> {
    let text = format!(r#"{{"version":3,{lists},"mappings":"{mappings}"}}"#);
    Mappings::of(&text, Path::new("/d/a.js.map"))
}

#[test]
fn messages_are_short() {
    let long = "x".repeat(1 << 20);
    let refused = |lists: &str| mappings_of(lists, "").unwrap_err();
    let what = refused(&format!(r#""sources":"{long}""#));
    assert!(what.starts_with("invalid type: string") && what.len() < 200, "{}", what.len());
    let what = refused(&format!(r#""sources":[],"{long}":[}}"#));
    assert!(what.len() < 200, "{}", what.len());
    for url in [&format!("https://{long}"), &format!("data:text/plain,{long}"), &long] {
        let what = Files::of(url, &[]).read().unwrap_err();
        assert!(what.len() < 300, "{}", what.len());
    }
    let what = Files::of("a.js.map", &[("a.js.map", &long)]).read().unwrap_err();
    assert!(what.len() < 300, "{}", what.len());
}

#[test]
fn names_that_would_fill_the_memory_are_refused() {
    let lists = |names: usize| {
        let names = vec![r#""""#; names].join(",");
        format!(r#""sources":["x"],"names":[{names}]"#)
    };
    assert!(mappings_of(&lists(1000), "AAAAA").is_ok());
    assert!(mappings_of(&lists(2_000_000), "AAAAA").unwrap_err().contains("more than 64 MiB"));
}

#[test]
fn places_of_sources_without_an_address_stay() {
    let map = mappings_of(r#""sources":[null,"x.ts"],"names":[null,"n"]"#, "AAAA,CCAAA,CAAAC");
    let map = map.unwrap();
    let original = |column| map.original(map.last_until(at(column), 1)?);
    assert_eq!(original(0), None);
    let x = |name| Some(OriginalPlace { file: "/d/x.ts", line: 1, column: 1, name });
    assert_eq!(original(1), x(None));
    assert_eq!(original(2), x(Some("n")));
}

#[test]
fn what_is_no_file_is_not_opened() {
    use inotify::{Inotify, WatchMask};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.js.map");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut inotify = Inotify::init().unwrap();
    inotify.watches().add(&path, WatchMask::OPEN).unwrap();
    let mut opened = || {
        let mut buffer = [0; 1024];
        inotify.read_events(&mut buffer).map_or(0, Iterator::count)
    };
    for _ in 0..2 {
        let what = Mappings::read(&folder.path().join("a.js"), "a.js.map").unwrap_err();
        assert!(what.ends_with("not a file"), "{what}");
        assert_eq!(opened(), 0);
    }
    let options = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_NONBLOCK;
    nix::fcntl::open(&path, options, nix::sys::stat::Mode::empty()).unwrap();
    assert_eq!(opened(), 1, "an open is seen");
}

#[test]
fn encoded_addresses_are_decoded() {
    let map = map();
    let file = format!("{TEXT}\n//# sourceMappingURL=gr%C3%B6%20.map\n");
    for name in ["grö .map", "gr%C3%B6%20.map"] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), &map).unwrap();
        fs::write(folder.path().join("a.js"), &file).unwrap();
        assert!(SourceMap::of(&folder.path().join("a.js")).is_ok(), "{name}");
    }
}

/// Reads a generated text with a map of these mappings, of x.ts and y.ts.
fn source_map(text: &str, mappings: &[&[i64]]) -> SourceMap {
    let mappings: Vec<String> = mappings.iter().map(|it| encoded(it)).collect();
    let lists = r#""sources":["x.ts","y.ts"],"names":["area","Shape"]"#;
    let map = format!(r#"{{"version":3,{lists},"mappings":"{}"}}"#, mappings.join(","));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.js");
    fs::write(folder.path().join("a.js.map"), map).unwrap();
    fs::write(&path, format!("{text}\n//# sourceMappingURL=a.js.map\n")).unwrap();
    SourceMap::of(&path).unwrap()
}

#[test]
fn mappings_of_other_functions_do_not_count() {
    let text = "function a(){f()}function b(){g()}var c=()=>{h()};k();if(1){m()}n()";
    let column = |what: &str| u32::try_from(text.find(what).unwrap()).unwrap();
    // One for `a`, one in `c`, and one in a block.
    let map = source_map(text, &[&[0, 0, 0, 0], &[40, 1, 5, 0], &[20, 0, 2, 0]]);
    let place = |what: &str, function: Option<(&str, &str)>| {
        let function = function.map(|(begin, name)| (at(column(begin) + 1), name));
        Some(map.place(at(column(what)), function)?.line)
    };
    assert_eq!(place("f()", Some(("a(){", "a"))), Some(1));
    // There is none for `b`.
    assert_eq!(place("g()", Some(("b(){", "b"))), None);
    assert_eq!(place("g()", None), None);
    assert_eq!(place("h()", Some(("=()=>", "c"))), Some(6));
    // The mapping in `c` is the last one, but `c` has ended.
    assert_eq!(place("k()", None), None);
    assert_eq!(place("m()", None), Some(8));
    assert_eq!(place("n()", None), None);
    // A function of x.ts with code of y.ts in it, and behind that what has no mapping.
    let text = "function a(){f();g({}).h();return{k:k()}}";
    let map = source_map(text, &[&[0, 0, 0, 0], &[17, 1, 5, 0], &[10, -1, -4, 0]]);
    let place = |what: &str| {
        let place = at(u32::try_from(text.find(what).unwrap()).unwrap());
        map.place(place, Some((at(10), "a"))).map(|it| (it.file.ends_with("x.ts"), it.line))
    };
    assert_eq!(place("f()"), Some((true, 1)));
    assert_eq!(place("g("), Some((false, 6)), "what the map says of the place itself");
    assert_eq!(place("h()"), None);
    assert_eq!(place("k()"), Some((true, 2)));
    assert_eq!(place("}}"), Some((true, 2)), "behind a block that is none");
    let begin = GeneratedPlace { line: 2, column: 1 };
    assert!(map.place(at(13), Some((begin, "a"))).is_none(), "in front of it");
}

#[test]
fn a_mapping_of_the_whole_line_is_that_of_what_begins_it() {
    let map = source_map("  function a(){f()}", &[&[0, 0, 4, 0]]);
    let function = map.function(at(12), "a").unwrap();
    assert_eq!((function.line, function.name), (5, None));
    assert_eq!(map.place(at(14), Some((at(12), "a"))).unwrap().line, 5);
    let map = source_map(";function a(){f()}", &[&[0, 0, 4, 0]]);
    assert!(map.function(at(11), "a").is_none());
}

#[test]
fn functions_of_properties_have_their_names() {
    let text = "class a{get b(){f()}set b(q){g()}}";
    let at_parameters = |what: &str| at(u32::try_from(text.find(what).unwrap()).unwrap());
    let map = source_map(text, &[&[0, 0, 0, 0], &[12, 0, 1, 0, 0], &[12, 0, 1, 0, 0]]);
    for (what, line) in [("(){f", 2), ("(q)", 3)] {
        for name in ["get b", "set b", "a.get b"] {
            let found = map.function(at_parameters(what), name).unwrap();
            assert_eq!((found.line, found.name), (line, Some("area")), "{name}");
        }
    }
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
                mappings.last_until(place, column).map(|it| mappings.original(it));
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

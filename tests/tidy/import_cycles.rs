//! Files do not import each other in a ring, and the folders of a module have an order.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{self, Source};

/// The path of a module in its crate, as in `["record", "store"]`.
pub(super) type Module = Vec<String>;

/// The folders of a module from bottom to top. Each folder imports only from those before it.
/// Folders that are not listed are above them.
const FOLDERS: [(&str, &[&str]); 2] = [
    (
        "record",
        &[
            "contract", "target", "batch", "source", "store", "weigh", "name", "write", "session",
            "run",
        ],
    ),
    ("view", &["text", "recording", "select", "profile", "print"]),
];
/// The crates whose files are checked.
pub(super) const CRATES: [&str; 6] =
    ["src/", "abi/src/", "agent/src/", "context/src/", "elf/src/", "unwind/src/"];

/// The imports of each module of one crate.
#[derive(Default)]
struct Imports(BTreeMap<Module, BTreeSet<Module>>);

impl Imports {
    /// Reads the files whose paths begin with `root`, without their tests.
    fn of(root: &str, tree: &[Source]) -> Self {
        let files: Vec<(Module, &Source)> = tree
            .iter()
            .filter(|file| file.is_rust())
            .filter_map(|file| Some((module(file.path.strip_prefix(root)?), file)))
            .filter(|(module, _)| !module.iter().any(|part| part == "tests"))
            .collect();
        let known: BTreeSet<Module> = files.iter().map(|(module, _)| module.clone()).collect();
        let mut imports = Self::default();
        for (own, file) in &files {
            let found = uses(&without_tests(&file.code()), own)
                .into_iter()
                .filter_map(|path| longest_known(&known, path))
                // A module and its own children count as one.
                .filter(|other| !other.starts_with(own) && !own.starts_with(other));
            imports.0.entry(own.clone()).or_default().extend(found);
        }
        imports
    }

    /// Returns the imports that are part of a ring, or lead from one ring to another.
    fn rings(&self) -> Vec<(Module, Module)> {
        let mut edges: BTreeSet<(Module, Module)> = self
            .0
            .iter()
            .flat_map(|(from, to)| to.iter().map(|to| (from.clone(), to.clone())))
            .collect();
        loop {
            let from: BTreeSet<Module> = edges.iter().map(|(from, _)| from.clone()).collect();
            let to: BTreeSet<Module> = edges.iter().map(|(_, to)| to.clone()).collect();
            let before = edges.len();
            // A module that imports none of the remaining modules, or that none of them imports, is
            // in no ring.
            edges.retain(|(one, other)| to.contains(one) && from.contains(other));
            if edges.len() == before {
                return edges.into_iter().collect();
            }
        }
    }

    /// Returns the imports of a folder of [`FOLDERS`] from a folder above it.
    fn upwards(&self) -> Vec<(Module, Module)> {
        let all = self.0.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
        all.filter(|(from, to)| {
            let (Some((own, at)), Some((other, above))) = (height(from), height(to)) else {
                return false;
            };
            own == other && at < above
        })
        .map(|(from, to)| (from.clone(), to.clone()))
        .collect()
    }
}

/// Returns the module of [`FOLDERS`] that contains this module, and the position of its folder.
fn height(module: &Module) -> Option<(&str, usize)> {
    let [top, folder, ..] = module.as_slice() else { return None };
    let (_, folders) = FOLDERS.iter().find(|(name, _)| name == top)?;
    let at = folders.iter().position(|it| it == folder).unwrap_or(folders.len());
    Some((top, at))
}

/// Returns the module of a file below the root of a crate.
pub(super) fn module(path: &str) -> Module {
    let path = path.trim_end_matches(".rs");
    let mut parts: Module = path.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// Returns the code before the file's own tests.
pub(super) fn without_tests(code: &str) -> String {
    let end = code.find("#[cfg(test)]\nmod tests {").unwrap_or(code.len());
    code[..end].to_owned()
}

/// Returns the paths that a file's `use` declarations name, from the root of the crate.
fn uses(code: &str, own: &Module) -> Vec<Module> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        let Some(at) = source::words(statement, "use").last() else { continue };
        let tree = &statement[at + "use".len()..];
        // Elsewhere `use` is a bound: `impl Trait + use<'a>`.
        if !tree.starts_with(char::is_whitespace) || tree.contains(['(', '<']) {
            continue;
        }
        for path in branches(tree) {
            found.extend(from_root(&path, own));
        }
    }
    found
}

/// Returns each path of `a::{b, c::{d, e}}`.
fn branches(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((stem, group)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let (mut depth, mut start, mut found) = (0_u32, 0, Vec::new());
    let group = group.strip_suffix('}').unwrap_or(group);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let inner = branches(&group[start..at]).into_iter();
                found.extend(inner.map(|inner| format!("{stem}{inner}")));
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Returns a path of this crate without `crate`, `self` and `super`; `None` for another crate.
fn from_root(path: &str, own: &Module) -> Option<Module> {
    let mut parts = path.split("::").map(str::trim).peekable();
    let mut base = match *parts.peek()? {
        "crate" => Module::new(),
        "self" | "super" => own.clone(),
        _ => return None,
    };
    while let Some(part) = parts.next_if(|part| ["crate", "self", "super"].contains(part)) {
        if part == "super" {
            base.pop()?;
        }
    }
    base.extend(parts.map(|part| part.split_whitespace().next().unwrap_or_default().to_owned()));
    Some(base)
}

/// Returns the file that a path leads into.
fn longest_known(known: &BTreeSet<Module>, mut path: Module) -> Option<Module> {
    while !path.is_empty() && !known.contains(&path) {
        path.pop();
    }
    (!path.is_empty()).then_some(path)
}

fn listed(edges: &[(Module, Module)]) -> String {
    let line = |(from, to): &(Module, Module)| format!("{} -> {}", from.join("/"), to.join("/"));
    edges.iter().map(line).collect::<Vec<_>>().join("\n")
}

mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Vec<Source> {
        let file =
            |(path, text): &(&str, &str)| Source { path: (*path).into(), text: (*text).into() };
        files.iter().map(file).collect()
    }

    fn rings(files: &[(&str, &str)]) -> String {
        listed(&Imports::of("src/", &tree(files)).rings())
    }

    #[test]
    fn no_files_import_each_other_in_a_ring() {
        let tree = source::tree();
        for root in CRATES {
            let rings = Imports::of(root, &tree).rings();
            assert!(rings.is_empty(), "{root}: imports in a ring:\n{}", listed(&rings));
        }
    }

    #[test]
    fn folders_import_downwards() {
        let imports = Imports::of("src/", &source::tree());
        let upwards = imports.upwards();
        assert!(upwards.is_empty(), "\n{}", listed(&upwards));
        for (top, folders) in FOLDERS {
            for folder in folders {
                let is_there =
                    imports.0.keys().any(|it| it.starts_with(&[top, folder].map(str::to_owned)));
                assert!(is_there, "there is no {top}/{folder}");
            }
        }
        let places = imports.0.keys().filter_map(height);
        let unlisted = places.filter(|(top, at)| *top == "record" && *at == FOLDERS[0].1.len());
        assert_eq!(unlisted.count(), 0, "the order of src/record lacks a folder");
    }

    #[test]
    fn rings_are_found() {
        let two = [("src/a.rs", "use crate::b::B;"), ("src/b.rs", "pub use super::a::{self, A};")];
        assert_eq!(rings(&two), "a -> b\nb -> a");
        let three = [
            ("src/x/a.rs", "use super::{b::B, d::D};"),
            ("src/x/b.rs", "use crate::{x::c::{C, E}, y};"),
            ("src/x/c.rs", "use crate::x::a::A as Other;"),
            ("src/x/d.rs", ""),
        ];
        assert_eq!(rings(&three), "x/a -> x/b\nx/b -> x/c\nx/c -> x/a");
    }

    #[test]
    fn children_tests_and_other_crates_make_no_ring() {
        let child = [("src/a/mod.rs", "use self::b::B;"), ("src/a/b.rs", "use super::A;")];
        assert_eq!(rings(&child), "");
        let tests = "use crate::c::C;\n#[cfg(test)]\nmod tests {\n use crate::b::B;\n}";
        let tested = [("src/a.rs", tests), ("src/b.rs", "use crate::a::A;"), ("src/c.rs", "")];
        assert_eq!(rings(&tested), "");
        assert_eq!(rings(&[("src/a.rs", "use b::A;"), ("src/b.rs", "use crate::a::A;")]), "");
    }

    #[test]
    fn upward_imports_are_found() {
        let up = [
            ("src/record/store/a.rs", "use crate::record::write::b::B;"),
            ("src/record/write/b.rs", "use crate::record::contract::C;"),
            ("src/record/contract/mod.rs", "use crate::trace::T;"),
        ];
        let upwards = Imports::of("src/", &tree(&up)).upwards();
        assert_eq!(listed(&upwards), "record/store/a -> record/write/b");
    }
}

//! The methods of a type are in at most two files, and no two types of a crate have one name.
//!
//! If a type outgrows its file, part of its state becomes another type. Otherwise methods in many
//! files could all see and change all of its fields.

use std::collections::{BTreeMap, BTreeSet};

use super::import_cycles::{CRATES, Module, module, without_tests};
use super::source::{self, Source};

/// The most files that may have methods of one type.
const FILES_MAX: usize = 2;

/// Modules whose types have the names that another format gives them.
const FOREIGN_NAMES: [&str; 1] = ["view/export/pprof/proto"];
/// Architectures, whose files mirror each other.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// A type: its name and the module that defines it.
type Type = (String, Module);

/// The files of a crate in which each type has methods. Implementations of traits do not count.
#[derive(Default)]
struct Methods(BTreeMap<Type, BTreeSet<String>>);

impl Methods {
    /// Reads the files whose paths begin with `root`, without their tests.
    fn of(root: &str, tree: &[Source]) -> Self {
        let files = files(root, tree);
        let homes = homes(&files);
        let mut methods = Self::default();
        for (module, file, code) in &files {
            for name in implemented(code) {
                // A type of another crate has no methods of ours.
                let Some(homes) = homes.get(&name) else { continue };
                let home = nearest(homes, module);
                methods.0.entry((name, home)).or_default().insert(file.path.clone());
            }
        }
        methods
    }

    /// Returns a line for each type whose methods are in too many files.
    fn sliced(&self) -> String {
        let too_many = self.0.iter().filter(|(_, files)| files.len() > FILES_MAX);
        let line = |((name, _), files): (&Type, &BTreeSet<String>)| {
            let files: Vec<&str> = files.iter().map(String::as_str).collect();
            format!("{name}: {}", files.join(", "))
        };
        too_many.map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the files whose paths begin with `root`: module, file, and code without tests.
fn files<'t>(root: &str, tree: &'t [Source]) -> Vec<(Module, &'t Source, String)> {
    tree.iter()
        .filter(|file| file.is_rust())
        .filter_map(|file| Some((module(file.path.strip_prefix(root)?), file)))
        .filter(|(module, _)| !module.iter().any(|part| part == "tests"))
        .map(|(module, file)| (module, file, without_tests(&file.code())))
        .collect()
}

/// Returns the modules that define a type of each name.
fn homes(files: &[(Module, &Source, String)]) -> BTreeMap<String, BTreeSet<Module>> {
    let mut homes: BTreeMap<String, BTreeSet<Module>> = BTreeMap::new();
    for (module, _, code) in files {
        for name in defined(code) {
            homes.entry(name).or_default().insert(module.clone());
        }
    }
    homes
}

/// Returns a line for each name that types of several modules have.
fn ambiguous(root: &str, tree: &[Source]) -> String {
    let mut homes = homes(&files(root, tree));
    for modules in homes.values_mut() {
        let own = modules.iter().filter(|module| !FOREIGN_NAMES.contains(&&*module.join("/")));
        let is_mirrored = |part: &&String| ARCHITECTURES.contains(&part.as_str());
        let generic =
            |module: &Module| module.iter().filter(|it| !is_mirrored(it)).cloned().collect();
        *modules = own.map(generic).collect();
    }
    let several = homes.iter().filter(|(_, modules)| modules.len() > 1);
    let line = |(name, modules): (&String, &BTreeSet<Module>)| {
        let modules: Vec<String> = modules.iter().map(|module| module.join("/")).collect();
        format!("{name}: {}", modules.join(", "))
    };
    several.map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the types that a file defines.
fn defined(code: &str) -> Vec<String> {
    let keywords = ["struct", "enum", "union"].into_iter();
    let found = keywords.flat_map(|keyword| {
        source::words(code, keyword).filter_map(move |at| name(&code[at + keyword.len()..]))
    });
    found.collect()
}

/// Returns the type of each block of methods in a file.
fn implemented(code: &str) -> Vec<String> {
    let blocks = source::words(code, "impl").filter(|at| {
        // Elsewhere `impl` is a type: `-> impl Trait`, `x: impl Trait`.
        let before = code[..*at].trim_end().chars().next_back();
        before.is_none_or(|c| ['}', ';', ']', '{'].contains(&c))
    });
    let found = blocks.filter_map(|at| {
        let block = behind_generics(&code[at + "impl".len()..]);
        let head = block.split(['{', ';']).next().unwrap_or_default();
        let head = head.split("where").next().unwrap_or_default();
        // `for<'a>` is part of a type.
        let is_of_trait = source::words(head, "for").any(|at| !head[at + 3..].starts_with('<'));
        let path = head.split('<').next().unwrap_or_default();
        (!is_of_trait).then(|| name(path.rsplit("::").next().unwrap_or_default())).flatten()
    });
    found.collect()
}

/// Returns the text after `<...>`, if the text starts with that.
fn behind_generics(text: &str) -> &str {
    let text = text.trim_start();
    if !text.starts_with('<') {
        return text;
    }
    let (mut depth, mut before) = (0_u32, ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            // Another `>` ends an arrow: `F: Fn() -> T`.
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[at + 1..];
        }
        before = c;
    }
    ""
}

/// Returns the name that the text starts with.
fn name(text: &str) -> Option<String> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

/// Returns the module that defines a type of this name and shares most of its path with the module
/// that names it.
fn nearest(homes: &BTreeSet<Module>, own: &Module) -> Module {
    let shared = |home: &&Module| home.iter().zip(own).take_while(|(one, two)| one == two).count();
    homes.iter().max_by_key(shared).cloned().unwrap_or_default()
}

mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Vec<Source> {
        let file =
            |(path, text): &(&str, &str)| Source { path: (*path).into(), text: (*text).into() };
        files.iter().map(file).collect()
    }

    fn sliced(files: &[(&str, &str)]) -> String {
        Methods::of("src/", &tree(files)).sliced()
    }

    #[test]
    fn types_are_not_in_slices() {
        let tree = source::tree();
        for root in CRATES {
            let methods = Methods::of(root, &tree);
            assert!(!methods.0.is_empty(), "{root}: no type was found");
            let sliced = methods.sliced();
            assert!(sliced.is_empty(), "{root}: methods in more than two files:\n{sliced}");
        }
    }

    #[test]
    fn no_two_types_of_a_crate_have_one_name() {
        let tree = source::tree();
        for root in CRATES {
            let ambiguous = ambiguous(root, &tree);
            assert!(ambiguous.is_empty(), "{root}: types of one name:\n{ambiguous}");
        }
    }

    #[test]
    fn types_of_one_name_are_found() {
        let files = [
            ("src/a.rs", "struct A;"),
            ("src/b/mod.rs", "pub(crate) enum A { B }\nstruct B;"),
            ("src/view/export/pprof/proto.rs", "struct B;"),
            ("src/x86_64/c.rs", "struct C;"),
            ("src/aarch64/c.rs", "struct C;"),
            ("src/d/tests.rs", "struct B;"),
        ];
        assert_eq!(ambiguous("src/", &tree(&files)), "A: a, b");
    }

    #[test]
    fn slices_are_found() {
        let three = [
            ("src/a/mod.rs", "pub struct A<'a>(&'a u8);\nimpl A<'_> { fn f() {} }"),
            ("src/a/b.rs", "use super::A;\nimpl<'a> A<'a> {}\n\nimpl A<'_> {}"),
            (
                "src/a/c.rs",
                "/// C.\n#[cfg(unix)]\nimpl<F: Fn() -> u8> crate::a::A<'_, F>\nwhere {}",
            ),
        ];
        assert_eq!(sliced(&three), "A: src/a/b.rs, src/a/c.rs, src/a/mod.rs");
        assert_eq!(sliced(&three[..2]), "");
    }

    #[test]
    fn traits_arguments_tests_and_comments_are_no_slices() {
        let two = [("src/a.rs", "enum A { B }\nimpl A {}"), ("src/b.rs", "impl A {}")];
        for third in [
            "impl Drop for A {}",
            "impl<T: for<'a> Fn(&'a T)> From<T> for A {}",
            "unsafe impl Sync for A {}",
            "fn f() -> impl A {}",
            "fn f(a: impl A, b: &mut impl A) {}",
            "// impl A {}\nconst X: &str = \"\nimpl A {}\";",
            "#[cfg(test)]\nmod tests {\nimpl A {}\n}",
            "impl AB {}",
        ] {
            assert_eq!(sliced(&[&two[..], &[("src/c.rs", third)]].concat()), "", "{third}");
        }
        assert_eq!(sliced(&[&two[..], &[("src/tests/c.rs", "impl A {}")]].concat()), "");
        assert_ne!(sliced(&[&two[..], &[("src/c.rs", "impl A {}")]].concat()), "");
    }

    #[test]
    fn types_of_the_same_name_are_distinguished() {
        let source = "struct Source;\nimpl Source {}";
        let four = [
            ("src/a/mod.rs", source),
            ("src/a/watch.rs", "impl Source {}"),
            ("src/b/split.rs", source),
            ("src/b/lazy/source.rs", source),
        ];
        assert_eq!(sliced(&four), "");
        let more = [&four[..], &[("src/a/watch/deep.rs", "impl Source {}")]].concat();
        assert_eq!(sliced(&more), "Source: src/a/mod.rs, src/a/watch.rs, src/a/watch/deep.rs");
    }
}

//! The filters of `.config/nextest.toml` and the lines of `tests/every-run.txt` name tests that exist:
//! a renamed test must not lose its group, and with it what it needs of the machine.

use super::source::{self, Source};

/// The names in the filters: modules, each with the beginning of a test's name.
fn named(config: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for filter in config.split("test(").skip(1) {
        let filter = filter.split(')').next().unwrap_or_default();
        if let Some(exact) = filter.strip_prefix('=') {
            let (module, name) = exact.rsplit_once("::").unwrap_or(("", exact));
            found.push((module.to_owned(), name.to_owned()));
        }
    }
    for pattern in config.split("test(/^").skip(1) {
        let pattern = pattern.split('/').next().unwrap_or_default();
        let (modules, names) = pattern.split_once("::").unwrap_or((pattern, ""));
        for module in alternatives(modules) {
            found.extend(alternatives(names).map(|name| (module.to_owned(), name.to_owned())));
        }
    }
    found
}

/// The alternatives of `(a|b)`, or the text itself.
fn alternatives(text: &str) -> impl Iterator<Item = &str> {
    text.trim_matches(['(', ')']).split('|')
}

/// Whether a module of the end-to-end tests has a test whose name begins like this.
fn is_there(tree: &[Source], (module, name): &(String, String)) -> bool {
    let file = module.replace("::", "/");
    let (file, folder) = (format!("tests/{file}.rs"), format!("tests/{file}/"));
    let mut own = tree.iter().filter(|it| it.path == file || it.path.starts_with(&folder));
    // They may be in the file that they test.
    let tested = module.strip_suffix("::tests").unwrap_or(module);
    let tested = tested.replace("::", "/");
    let unit_tests = ["src", "unwind/src"].map(|root| format!("{root}/{tested}"));
    let is_unit_test = |it: &Source| unit_tests.iter().any(|start| it.path.starts_with(start));
    // Some tests are rows of a macro.
    let row = format!("\n    {} [", name.trim_end_matches("()"));
    // A pattern of unit tests may end with a module.
    let has_name = |it: &Source| {
        name.ends_with("::")
            || it.text.contains(&format!("fn {name}"))
            || it.text.contains("\nkinds! {") && it.text.contains(&row)
    };
    own.any(has_name) || tree.iter().any(|it| is_unit_test(it) && has_name(it))
}

mod tests {
    use super::*;

    #[test]
    fn groups_name_tests_that_exist() {
        let tree = source::tree();
        let config = tree.iter().find(|file| file.path == ".config/nextest.toml").expect("filters");
        let named = named(&config.text);
        assert!(named.len() > 50, "{named:?}");
        let missing: Vec<_> = named.iter().filter(|it| !is_there(&tree, it)).collect();
        assert!(missing.is_empty(), "filters without tests: {missing:?}");
    }

    #[test]
    fn tests_of_every_run_exist() {
        let tree = source::tree();
        let list = tree.iter().find(|file| file.path == "tests/every-run.txt").expect("lines");
        let names: Vec<&str> = list.text.lines().filter(|it| !it.starts_with('#')).collect();
        let pair = |name: &str| {
            let (module, name) = name.rsplit_once("::").unwrap_or(("", name));
            (module.to_owned(), format!("{name}()"))
        };
        let missing: Vec<_> = names.iter().filter(|it| !is_there(&tree, &pair(it))).collect();
        assert!(names.len() > 20 && missing.is_empty(), "lines without tests: {missing:?}");
    }

    #[test]
    fn names_are_read_out_of_filters() {
        let config = "test(/^(a|b)::/) + test(/^c::(d|e_)/)\n + test(=f::g)";
        let pair = |(module, name): (&str, &str)| (module.to_owned(), name.to_owned());
        let expected = [("f", "g"), ("a", ""), ("b", ""), ("c", "d"), ("c", "e_")].map(pair);
        assert_eq!(named(config), expected);
        let file = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let tree = [file("tests/a.rs", "fn x() {}"), file("tests/c/mod.rs", "fn e_y() {}")];
        let found = expected.map(|it| is_there(&tree, &it));
        assert_eq!(found, [false, true, false, false, true]);
    }
}

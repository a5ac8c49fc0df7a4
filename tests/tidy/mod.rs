//! The house rules that a program can check, each with a test of itself.

mod allowed_crates;
mod hygiene;
mod import_cycles;
mod layers;
mod objects;
mod source;
mod test_groups;

use source::Source;

/// A rule checks one file and returns its violations.
type Rule = fn(&Source) -> Vec<String>;

fn assert_tree_follows(rule: Rule) {
    let tree = source::tree();
    assert!(tree.len() > 20, "the tree was not found: {} files", tree.len());
    let wrong: Vec<String> = tree
        .iter()
        .flat_map(|file| rule(file).into_iter().map(|text| format!("{}: {text}", file.path)))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Checks a rule against a planted file, which must have exactly `expected` violations.
fn check(rule: Rule, path: &str, text: &str, expected: usize) {
    let found = rule(&Source { path: path.into(), text: text.into() });
    assert_eq!(found.len(), expected, "{path}: {text:?} gives {found:?}");
}

//! Dependencies only point downwards.

use super::source::{Source, words};

/// The layer table of the architecture text in `src/lib.rs`. Modules of one layer do not import
/// each other.
const LAYERS: [(&str, u8); 15] = [
    ("cli", 5),
    ("inspect", 4),
    ("record", 3),
    ("view", 3),
    ("inject", 2),
    ("unwind", 2),
    ("symbol", 2),
    ("runtime", 2),
    ("trace", 2),
    ("elf", 1),
    ("proc", 1),
    ("quantity", 1),
    ("test_turn", 1),
    ("text", 1),
    ("fault", 1),
];

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|&(_, layer)| layer)
}

/// Returns imports of a module of the same layer or of a higher one.
fn imports_point_downwards(file: &Source) -> Vec<String> {
    let Some(inner) = file.path.strip_prefix("src/").filter(|_| file.is_rust()) else {
        return Vec::new();
    };
    if matches!(inner, "lib.rs" | "main.rs") {
        return Vec::new();
    }
    let module = inner.split('/').next().unwrap_or(inner).trim_end_matches(".rs");
    let Some(own_layer) = layer(module) else {
        return vec![format!("module {module} is not in the layer table")];
    };
    let code = file.code();
    let mut wrong = Vec::new();
    for imported in reached(&code, module_depth(inner)) {
        match layer(&imported) {
            _ if imported == module => {}
            Some(other) if other < own_layer => {}
            Some(other) => wrong.push(format!(
                "{module} (layer {own_layer}) must not know {imported} (layer {other})"
            )),
            None => wrong.push(format!("crate::{imported} is not in the layer table")),
        }
    }
    wrong
}

/// Returns how many `super` lead from a file to the crate root.
fn module_depth(inner: &str) -> usize {
    let parts = inner.split('/').count();
    if inner.ends_with("/mod.rs") { parts - 1 } else { parts }
}

/// Returns the top-level modules that the code names.
fn reached(code: &str, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for at in words(code, "crate") {
        let Some(path) = code[at + "crate".len()..].trim_start().strip_prefix("::") else {
            continue;
        };
        found.extend(heads(path));
    }
    // `super::super::trace` reaches a neighbour without the word `crate`.
    let climb = "super::".repeat(depth);
    for (at, _) in code.match_indices(&climb) {
        let path = &code[at + climb.len()..];
        found.extend(heads(path).into_iter().filter(|head| layer(head).is_some()));
    }
    found
}

/// Returns the first segments of `a::b`, or of each path in `{a::b, c}`.
fn heads(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else { return vec![segment(path)] };
    let mut depth = 0_u32;
    let mut heads = vec![segment(group.trim_start())];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(segment(group[at + 1..].trim_start())),
            _ => {}
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

fn segment(path: &str) -> String {
    path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Members of the workspace that may import only `abi`, or nothing.
fn members_stay_small(file: &Source) -> Vec<String> {
    let allowed: &[&str] = match file.path.as_str() {
        "abi/Cargo.toml" => &[],
        "agent/Cargo.toml" | "context/Cargo.toml" => &["traceprof-abi"],
        _ => return Vec::new(),
    };
    let mut in_dependencies = false;
    let mut wrong = Vec::new();
    for line in file.text.lines().map(str::trim) {
        if line.starts_with('[') {
            in_dependencies = line == "[dependencies]";
        } else if in_dependencies
            && let Some((name, _)) = line.split_once(['=', '.'])
            && !allowed.contains(&name.trim())
        {
            wrong.push(format!("{} is a dependency", name.trim()));
        }
    }
    wrong
}

mod tests {
    use super::super::{assert_tree_follows, check};
    use super::*;

    #[test]
    fn tree_imports_downwards() {
        assert_tree_follows(imports_point_downwards);
        assert_tree_follows(members_stay_small);
    }

    #[test]
    fn upward_and_sideways_imports_are_found() {
        let rule = imports_point_downwards;
        check(rule, "src/trace/writer.rs", "use crate::record::Session;", 1);
        check(rule, "src/trace/writer.rs", "use crate::symbol::Symbolizer;", 1);
        check(rule, "src/record/mod.rs", "fn f() { crate::view::tree() }", 1);
        check(rule, "src/proc.rs", "use crate::{elf::Header, trace};", 2);
        check(rule, "src/trace/mod.rs", "use super::inject::Injection;", 1);
        check(rule, "src/trace/a/b.rs", "use super::super::super::inject::Injection;", 1);
        check(rule, "src/wizard/mod.rs", "", 1);
        check(rule, "src/cli/mod.rs", "use crate::wizard::Wand;", 1);
    }

    #[test]
    fn downward_imports_and_words_in_comments_are_not() {
        let rule = imports_point_downwards;
        check(rule, "src/record/mod.rs", "use crate::{proc, trace::{Writer, Sample}};", 0);
        check(rule, "src/trace/mod.rs", "use crate::trace::Sample;", 0);
        check(rule, "src/trace/mod.rs", "// crate::record\nlet x = \"crate::record\";", 0);
        check(rule, "src/trace/a.rs", "use super::Sample; pub(crate) struct X;", 0);
        check(rule, "src/lib.rs", "pub use crate::record::Session;", 0);
        check(rule, "tests/record.rs", "use crate::common::Target;", 0);
    }

    #[test]
    fn foreign_dependency_of_a_member_is_found() {
        let manifest = |dependency: &str| {
            format!(
                "[package]\nname = \"x\"\n[dependencies]\n{dependency}\n[dev-dependencies]\na = \
                 \"1\"\n"
            )
        };
        check(members_stay_small, "agent/Cargo.toml", &manifest("libc = \"1\""), 1);
        check(
            members_stay_small,
            "agent/Cargo.toml",
            &manifest("traceprof-abi = { path = \"x\" }"),
            0,
        );
        check(members_stay_small, "abi/Cargo.toml", &manifest("libc.workspace = true"), 1);
        check(members_stay_small, "Cargo.toml", &manifest("libc = \"1\""), 0);
    }
}

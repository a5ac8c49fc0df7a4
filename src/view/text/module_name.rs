//! The short name of a module: the last part of its path.

/// Files whose name says nothing without that of their folder.
const OF_FOLDERS: [&str; 4] = ["__init__.py", "__main__.py", "index.js", "index.mjs"];

/// How the names of modules of JavaScript begin that are no paths: those of Node.js itself, and
/// code that is evaluated.
const NO_PATHS: [&str; 2] = ["node:", "eval at "];

/// Returns the last part of a module's path, with its folder if the name says nothing alone.
pub(in crate::view) fn module_name(path: &str) -> &str {
    if NO_PATHS.iter().any(|start| path.starts_with(start)) {
        return path;
    }
    let Some((folder, name)) = path.rsplit_once('/') else { return path };
    match OF_FOLDERS.contains(&name) {
        true => folder.rfind('/').map_or(path, |slash| &path[slash + 1..]),
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_module_it_is() {
        for (path, name) in [
            ("/usr/lib/libc.so.6", "libc.so.6"),
            ("[vdso]", "[vdso]"),
            ("/usr/lib/python3.11/json/decoder.py", "decoder.py"),
            ("/usr/lib/python3.11/json/__init__.py", "json/__init__.py"),
            ("json/__init__.py", "json/__init__.py"),
            ("__init__.py", "__init__.py"),
            ("/srv/app/index.js", "app/index.js"),
            ("node:fs/promises", "node:fs/promises"),
            ("eval at f (/srv/app/a.js:7)", "eval at f (/srv/app/a.js:7)"),
            ("/", ""),
            ("", ""),
        ] {
            assert_eq!(module_name(path), name, "{path}");
        }
    }
}

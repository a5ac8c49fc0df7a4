//! Functions of interpreters themselves, which views leave out between and above frames of the
//! program.

/// How the functions of an interpreter are called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Carriers {
    /// The beginnings of file names of interpreters and of libraries that are nothing else.
    pub(super) files: &'static [&'static str],
    /// The beginnings of the names of its functions.
    pub(super) prefixes: &'static [&'static str],
    /// Other functions. A name that ends with `*` stands for all names that begin so.
    pub(super) others: &'static [&'static str],
}

impl Carriers {
    /// Returns whether a function belongs to the interpreter in the module of this path.
    ///
    /// All of an interpreter's own file does. Another program that contains the interpreter has
    /// code of its own in the same file. There the name decides, and a function without a name
    /// counts as the interpreter's.
    pub(super) fn has(&self, path: &str, function: Option<&str>) -> bool {
        let file = path.rsplit('/').next().unwrap_or(path);
        if self.files.iter().any(|start| file.starts_with(start)) {
            return true;
        }
        let Some(name) = function else { return true };
        // The compiler appends `.cold`, `.part.0` and the like to parts of a function.
        let name = name.split('.').next().unwrap_or(name);
        let is_other = |known: &&str| match known.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == *known,
        };
        self.prefixes.iter().any(|it| name.starts_with(it)) || self.others.iter().any(is_other)
    }
}

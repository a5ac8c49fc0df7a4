//! What the threads of the compilers compile.

use super::machine::JavaReader;

/// The pointers to the method that a thread compiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Compiled {
    task: u64,
    method: u64,
}

/// Returns whether a thread with this name may be one of a compiler.
fn is_compiler(name: &str) -> bool {
    let (compiler, rest) = name.split_at_checked(2).unwrap_or_default();
    matches!(compiler, "C1" | "C2") && rest.starts_with(" CompilerThread")
}

impl JavaReader<'_> {
    /// Returns the method that a thread compiles, given by its structure and its name. `None` also
    /// if the task ended meanwhile.
    pub(super) fn compiles(&self, thread: u64, name: &str) -> Option<String> {
        if !is_compiler(name) {
            return None;
        }
        let found = self.compiled_by(thread)?;
        let method = self.methods().method(found.method).ok()?;
        // The task keeps the method alive.
        let after = self.again().compiled_by(thread);
        (after == Some(found)).then(|| method.full_name())
    }

    fn compiled_by(&self, thread: u64) -> Option<Compiled> {
        let layout = self.layout().thread.compiling?;
        let pages = self.pages();
        let task = layout.task.pointer(pages, layout.compilation.pointer(pages, thread)?)?;
        Some(Compiled { task, method: layout.method.pointer(pages, task)? })
    }
}

#[cfg(test)]
mod tests {
    use super::is_compiler;

    #[test]
    fn threads_of_compilers_are_known_by_their_names() {
        assert!(["C2 CompilerThread0", "C1 CompilerThread12"].into_iter().all(is_compiler));
        assert!(
            !["", "C", "main", "C3 CompilerThread0", "ö CompilerThread"]
                .iter()
                .any(|it| is_compiler(it))
        );
    }
}

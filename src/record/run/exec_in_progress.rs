//! Whether an exec is still in progress in a process.

use std::io;

use crate::proc::{self, Mapping};

/// Whether no exec is in progress in a process. True if its mappings are not readable.
pub(crate) fn is_settled(pid: i32) -> bool {
    match proc::mappings(pid) {
        Ok(mappings) => is_complete(&mappings),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// Whether the kernel has mapped all of a program: its own code, and last the vdso.
fn is_complete(mappings: &[Mapping]) -> bool {
    let has_code = mappings.iter().any(|mapping| mapping.exec && mapping.inode != 0);
    has_code && mappings.iter().any(|mapping| mapping.path == "[vdso]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_is_over_when_all_is_mapped() {
        let own = proc::mappings(std::process::id() as i32).unwrap();
        assert!(is_complete(&own));
        let without = |path: &str| {
            let rest = own.iter().filter(|mapping| mapping.path != path);
            rest.cloned().collect::<Vec<_>>()
        };
        assert!(!is_complete(&without("[vdso]")));
        // The first mapping of an exec.
        let stack: Vec<_> = own.iter().filter(|it| it.path == "[stack]").cloned().collect();
        assert!(stack.len() == 1 && !is_complete(&stack));
    }
}

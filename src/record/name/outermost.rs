//! Functions of runtimes that are known to be the outermost ones of a stack.
//!
//! A runtime that keeps its frames on stacks of its own ends the chain of frame pointers with a
//! zero. A general register may hold a zero anywhere, so the zero alone proves nothing. The name of
//! the function to which the last frame returns does.

/// What Erlang's machine adds to the names of functions in its map.
const ERLANG_PREFIX: &str = "$";
const ERLANG_SUFFIX: &str = "-CodeInfoPrologue";
/// The function to which the first function of each Erlang process returns.
const ERLANG: &str = "erts_beamasm:normal_exit/0";

/// Whether all stacks of a runtime start with the generated function of this name.
pub(crate) fn is_first(name: &str) -> bool {
    let name = name.strip_prefix(ERLANG_PREFIX).unwrap_or(name);
    name.strip_suffix(ERLANG_SUFFIX).unwrap_or(name) == ERLANG
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_that_start_a_stack_are_outermost() {
        assert!(is_first("erts_beamasm:normal_exit/0-CodeInfoPrologue"));
        assert!(is_first("$erts_beamasm:normal_exit/0-CodeInfoPrologue"));
        assert!(is_first("erts_beamasm:normal_exit/0"));
        for other in ["init:do_boot/3", "x:normal_exit/0", "erts_beamasm:normal_exit/0-x", ""] {
            assert!(!is_first(other), "{other}");
        }
    }
}

//! Functions of the interpreter itself, which views leave out between and above Python frames.

/// The beginnings of file names of interpreters and of libraries that are nothing else.
const INTERPRETERS: [&str; 2] = ["python", "libpython"];

/// Functions of the interpreter that have no prefix of its own, and that call Python code or are
/// called by it. A name that ends with `*` stands for all names that begin so.
const UNPREFIXED: &[&str] = &[
    "builtin_*",
    "call_attribute",
    "call_function",
    "call_unbound*",
    "cfunction_*",
    "do_call_core",
    "exec_code_in_module",
    "function_code_fastcall",
    "gen_iternext",
    "gen_send*",
    "import_find_and_load",
    "import_name",
    "method_call",
    "method_vectorcall*",
    "object_vacall",
    "pymain_*",
    "pyrun_*",
    "pythread_wrapper",
    "run_eval_code_obj",
    "run_mod",
    "slot_*",
    "t_bootstrap",
    "thread_run",
    "type_call",
    "vectorcall_*",
    "wrap_*",
    "wrapper_call",
    "wrapperdescr_*",
];

/// Returns whether a function belongs to the interpreter in the module of this path.
///
/// All of `libpython` does, and all of a `python` executable. Another program that contains the
/// interpreter has code of its own in the same file. There the name decides, and a function
/// without a name counts as the interpreter's.
pub(super) fn is_interpreters(path: &str, function: Option<&str>) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    if INTERPRETERS.iter().any(|start| file.starts_with(start)) {
        return true;
    }
    let Some(name) = function else { return true };
    // The compiler appends `.cold`, `.part.0` and the like to parts of a function.
    let name = name.split('.').next().unwrap_or(name);
    let is_prefixed = name.starts_with("Py") || name.starts_with("_Py");
    is_prefixed
        || UNPREFIXED.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == *known,
        })
}

#[cfg(test)]
mod tests {
    use super::is_interpreters;

    #[test]
    fn the_interpreters_files_have_nothing_else() {
        for path in ["/usr/bin/python3.11", "/opt/lib/libpython3.8.so.1.0"] {
            for name in [Some("long_add"), Some("main"), None] {
                assert!(is_interpreters(path, name), "{path} {name:?}");
            }
        }
    }

    #[test]
    fn other_programs_have_code_of_their_own() {
        let is_it = |name| is_interpreters("/opt/python/app", name);
        for name in ["_PyEval_EvalFrameDefault.cold", "PyObject_CallOneArg", "slot_tp_init"] {
            assert!(is_it(Some(name)), "{name}");
        }
        for name in ["main", "render", "Player::run", "mapped"] {
            assert!(!is_it(Some(name)), "{name}");
        }
        assert!(is_it(None));
    }
}

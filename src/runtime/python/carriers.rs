//! Functions of the interpreter itself, which views leave out between and above Python frames.

use crate::runtime::carriers::Carriers;

pub(super) const CARRIERS: Carriers =
    Carriers { files: &["python", "libpython"], prefixes: &["Py", "_Py"], others: UNPREFIXED };

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

#[cfg(test)]
mod tests {
    use super::CARRIERS;

    #[test]
    fn the_interpreters_files_have_nothing_else() {
        for path in ["/usr/bin/python3.11", "/opt/lib/libpython3.8.so.1.0"] {
            for name in [Some("long_add"), Some("main"), None] {
                assert!(CARRIERS.has(path, name), "{path} {name:?}");
            }
        }
    }

    #[test]
    fn other_programs_have_code_of_their_own() {
        let is_it = |name| CARRIERS.has("/opt/python/app", name);
        for name in ["_PyEval_EvalFrameDefault.cold", "PyObject_CallOneArg", "slot_tp_init"] {
            assert!(is_it(Some(name)), "{name}");
        }
        for name in ["main", "render", "Player::run", "mapped"] {
            assert!(!is_it(Some(name)), "{name}");
        }
        assert!(is_it(None));
    }
}

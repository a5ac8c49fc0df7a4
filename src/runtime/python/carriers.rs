//! The interpreter's own functions that only carry Python frames.
//!
//! Python code calls Python code through them when a call does not stay in the interpreter's loop:
//! they prepare arguments and find the code to call. A reader of a profile knows them as the call.

/// Names of such functions. A name that ends with `*` stands for all names that begin so.
const CARRIERS: &[&str] = &[
    // The loop, and the ways into it.
    "_PyEval_*",
    "PyEval_Eval*",
    "function_code_fastcall",
    "_PyFunction_*",
    "gen_send_ex*",
    "gen_iternext",
    "gen_send",
    "PyIter_Send",
    // Calls of objects.
    "PyObject_Call*",
    "_PyObject_Call*",
    "PyObject_Vectorcall*",
    "_PyObject_Vectorcall*",
    "_PyObject_FastCall*",
    "_PyObject_MakeTpCall",
    "PyVectorcall_Call",
    "_PyVectorcall_Call",
    "_PyCFunction_*",
    "PyCFunction_Call*",
    "_PyMethodDef_RawFastCall*",
    "_PyMethodDescr_*",
    "cfunction_call*",
    "cfunction_vectorcall_*",
    "method_call",
    "method_vectorcall*",
    "object_vacall",
    "call_function",
    "call_attribute",
    "call_unbound*",
    "do_call_core",
    "vectorcall_*",
    "slot_*",
    "wrap_*",
    "wrapperdescr_*",
    "wrapper_call",
    "type_call",
    // Code that runs from its source.
    "builtin_exec*",
    "builtin_eval*",
    "builtin___build_class__",
    "exec_code_in_module",
    "PyImport_*",
    "_PyImport_*",
    "import_find_and_load",
    "import_name",
    "PyRun_*",
    "_PyRun_*",
    "pyrun_*",
    "run_eval_code_obj",
    "run_mod",
    // The start of the program and of its threads.
    "main",
    "Py_Main",
    "Py_RunMain",
    "Py_BytesMain",
    "pymain_*",
    "thread_run",
    "t_bootstrap",
    "pythread_wrapper",
];

/// Returns whether a function of the interpreter's module only carries Python frames. A function
/// without a symbol counts: builds that have one name at most have none for these.
pub(super) fn is_carrier(function: Option<&str>) -> bool {
    let Some(name) = function else { return true };
    // The compiler appends `.cold`, `.part.0` and the like to parts of a function.
    let name = name.split('.').next().unwrap_or(name);
    CARRIERS.iter().any(|carrier| match carrier.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *carrier,
    })
}

#[cfg(test)]
mod tests {
    use super::is_carrier;

    #[test]
    fn calls_are_carriers_and_work_is_not() {
        for name in ["_PyEval_EvalFrameDefault.cold", "PyObject_CallOneArg", "slot_tp_init", "main"]
        {
            assert!(is_carrier(Some(name)), "{name}");
        }
        for name in ["list_sort_impl", "long_mul", "gc_collect_main", "_PyUnicode_Copy", "mainly"] {
            assert!(!is_carrier(Some(name)), "{name}");
        }
        assert!(is_carrier(None));
    }
}

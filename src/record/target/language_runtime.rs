//! Language runtimes that an application contains.

use std::io;

use crate::proc::{self, Mapping};
use crate::runtime::RuntimeExports;

/// Returns the language of the runtime in a module, if there is one whose functions can be named.
pub(crate) fn in_module(pid: i32, mapping: &Mapping) -> Option<&'static str> {
    // An unreadable module counts as one without a runtime.
    let exports = || -> io::Result<Option<RuntimeExports>> {
        let bytes = proc::map_file(proc::open_mapping(pid, mapping)?)?;
        Ok(RuntimeExports::of(&bytes, &mapping.path.to_string_lossy()))
    };
    let exports = exports().ok().flatten().filter(RuntimeExports::is_supported);
    exports.map(|it| it.language().name())
}

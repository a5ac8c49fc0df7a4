//! Language runtimes that an application contains.

use std::io;

use crate::proc::{self, Mapping};
use crate::runtime::v8::V8Exports;
use crate::runtime::{ManagedLanguage, RuntimeExports};

/// Returns the language of the runtime in a module, if there is one whose functions only handlers
/// can name.
pub(crate) fn in_module(pid: i32, mapping: &Mapping) -> Option<&'static str> {
    // An unreadable module counts as one without a runtime.
    let language = || -> io::Result<Option<ManagedLanguage>> {
        let bytes = proc::map_file(proc::open_mapping(pid, mapping)?)?;
        let path = mapping.path.to_string_lossy();
        let managed = RuntimeExports::of(&bytes, &path).filter(RuntimeExports::is_supported);
        let v8 = V8Exports::of(&bytes, &path).filter(V8Exports::is_supported);
        let managed = managed.map(|it| it.language());
        Ok(managed.or(v8.map(|_| ManagedLanguage::JavaScript)))
    };
    language().ok().flatten().map(ManagedLanguage::name)
}

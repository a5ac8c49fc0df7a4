//! The module of the recorded program, which readers of a profile show as its file.

use std::collections::HashMap;

use crate::trace::{LocationId, ModuleId};
use crate::view::profile::call_tree::StackStep;
use crate::view::profile::thread_profile::Profile;

/// Returns the module of the program: the one that has the name of the command. Otherwise that in
/// which most stacks begin, unless it is a library.
pub(super) fn program(profile: &Profile) -> Option<ModuleId> {
    let name = profile.recording.program();
    let paths = profile.modules.iter().map(|module| file_name(&module.path));
    let named = name.and_then(|name| {
        let ids = paths.enumerate().filter(|(_, path)| !path.is_empty());
        // The exact name first: `python3` may stand for `python3.11`.
        let found = ids.filter_map(|(id, path)| Some((distance(&name, path)?, id))).min();
        found.map(|(_, id)| ModuleId(id as u32))
    });
    named.or_else(|| outermost(profile))
}

fn file_name(path: &str) -> &str {
    if path.starts_with('/') { path.rsplit('/').next().unwrap_or_default() } else { "" }
}

/// Returns the length of the version in a file's name, if the rest is the name of the command.
fn distance(command: &str, file: &str) -> Option<usize> {
    let version = file.strip_prefix(command)?;
    version
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b".-".contains(&byte))
        .then_some(version.len())
}

/// Returns the module with the most samples whose stack begins in it.
fn outermost(profile: &Profile) -> Option<ModuleId> {
    let mut weights: HashMap<ModuleId, u64> = HashMap::new();
    for thread in &profile.threads {
        let calls = thread.tree.calls();
        // The outermost function of each call; callers come first.
        let mut first: Vec<Option<LocationId>> = Vec::with_capacity(calls.len());
        for (index, call) in calls.iter().enumerate() {
            let caller = if index == 0 { None } else { first[call.caller()] };
            let own = match call.step {
                StackStep::Frame(location) => Some(location),
                _ => None,
            };
            first.push(caller.or(own));
            if let Some(module) = first[index].and_then(|location| native_module(profile, location))
            {
                *weights.entry(module).or_default() += call.own.weight;
            }
        }
    }
    // Of equal ones the first, so that the same trace makes the same file.
    weights.into_iter().max_by_key(|(id, weight)| (*weight, u32::MAX - id.0)).map(|(id, _)| id)
}

/// Returns the module of native code, unless it is a library or no file.
fn native_module(profile: &Profile, location: LocationId) -> Option<ModuleId> {
    let location = profile.locations.get(location.0 as usize)?;
    if location.kind.language().is_managed() {
        return None;
    }
    let id = profile.method(location.method)?.module?;
    let name = file_name(&profile.modules.get(id.0 as usize)?.path);
    let is_library = name.ends_with(".so") || name.contains(".so.");
    (!name.is_empty() && !is_library).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_a_version_that_the_command_lacks() {
        assert_eq!(distance("redis-server", "redis-server"), Some(0));
        assert_eq!(distance("python3", "python3.11"), Some(3));
        assert_eq!(distance("python3", "python3-config"), None);
        assert_eq!(distance("postgres", "libpostgres"), None);
        assert_eq!((file_name("/usr/bin/x"), file_name("[vdso]")), ("x", ""));
    }
}

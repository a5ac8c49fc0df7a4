//! Interpreters that run, and memory that holds anything.

mod image;
mod interpreters;
mod line_tables;
mod live;
mod lua;
mod lua_image;
mod lua_steps;
mod made;
mod perl;
mod php;
mod ruby;
mod task_offsets;
mod wild;

use std::path::PathBuf;

/// Returns the directory of programs that the tests need, if they are no packages of the system.
pub(super) fn tools() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    // The build directory has it beside that of the profile, which has that of the tests.
    own.ancestors().nth(3).expect("a build directory").join("tools")
}

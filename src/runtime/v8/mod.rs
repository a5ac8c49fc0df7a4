//! V8, the engine that runs JavaScript in Node.js 18, 20, 22 and 24.
//!
//! `exports` reads the file that contains the engine. It describes a part of its objects to
//! debuggers in exported constants; `layout` takes offsets from there, and has the others for each
//! version. `locate` finds the engine in a live process, and compares the layout with live code.
//! `heap` reads objects, and `strings` texts. `function` reads the functions of frames, by what all
//! functions from one piece of source code share: `scope_info` has the name and `script` the file
//! and the lines. `code_finder` finds compiled code by an address in it, and `code` reads what it
//! was compiled from. `builtins` tells the engine's own functions apart.
//!
//! # Invariants
//! - What is read was there, at the same addresses, before and after the reading: otherwise the
//!   collector has moved or freed it meanwhile, and the reason is [`Gone::Changing`].
//!
//! [`Gone::Changing`]: super::Gone::Changing

mod builtins;
mod bytecode_sizes;
mod code;
mod code_finder;
mod constants;
mod exports;
#[cfg(any(test, fuzzing))]
mod for_test;
mod function;
mod heap;
mod layout;
mod locate;
mod machine;
mod positions;
mod scope_info;
mod script;
mod shared_info;
mod strings;
#[cfg(test)]
pub(crate) mod tests;
mod version;

pub use builtins::BuiltinRole;
pub use code::{JsCode, JsPosition, JsTier};
pub use exports::V8Exports;
pub use function::JsFunction;
pub use machine::{V8Machine, V8Reader};
pub use script::SourcePlace;

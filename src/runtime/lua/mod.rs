//! LuaJIT 2.1 on x86-64 with 64-bit references (`LJ_GC64`), and its branch for OpenResty.
//!
//! [`exports`] reads the file that has the interpreter: `luajit`, `libluajit`, or a program that
//! contains it and exports its functions. [`locate`] makes the block for the handlers.
//! [`functions`] names functions, and [`lines`] reads the lines of their instructions.

mod exports;
mod functions;
mod lines;
mod locate;

pub(super) use exports::LuaExports;
pub(super) use functions::LuaReader;
pub(super) use lines::CodeLines;

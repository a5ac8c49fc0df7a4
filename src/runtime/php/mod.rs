//! PHP 8.1 to 8.4, in builds without thread safety.
//!
//! [`exports`] reads the file that has the interpreter: a program such as `php` or `php-fpm`, or
//! `libphp`. [`locate`] compares the structures, whose offsets [`offsets`] has for each version,
//! with the frames that are there. [`functions`] names functions, and with [`known`] those that are
//! gone: copies of functions that are [`declared`] or were read.

mod declared;
mod exports;
mod functions;
mod known;
mod locate;
mod offsets;
mod text;
mod version;

pub(super) use exports::PhpExports;
pub(super) use functions::PhpReader;

//! Searches the target's code for the few instructions that chains are made of.

use std::ffi::OsStr;

use super::arch::{RESTORERS, SYSCALL, SYSCALL_RETURN};
use super::identity::Execution;
use super::stop::Stopped;
use crate::proc::{self, Mapping};

/// No mapping is searched further than this.
const SEARCH_MAX: u64 = 64 << 20;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gadgets {
    /// The program that they are in.
    execution: Execution,
    /// A bare system call instruction.
    pub(super) syscall: u64,
    /// `syscall; ret`.
    pub(super) call: Option<u64>,
    /// A restorer.
    pub(super) restorer: Option<u64>,
}

impl Gadgets {
    /// Searches the mapped code, likely places first. `None` if it holds no system call at all. The
    /// mappings were read while the process was in this execution of a program.
    pub(super) fn find(pid: i32, execution: Execution, mappings: &[Mapping]) -> Option<Gadgets> {
        let mut code: Vec<&Mapping> =
            mappings.iter().filter(|m| m.exec && m.read && is_code(m)).collect();
        code.sort_by_key(|mapping| preference(&mapping.path));
        let (mut syscall, mut call, mut restorer) = (None, None, None);
        for mapping in code {
            if call.is_some() && restorer.is_some() {
                break;
            }
            let len = (mapping.end - mapping.start).min(SEARCH_MAX) as usize;
            let Ok(bytes) = proc::read_memory(pid, mapping.start, len) else { continue };
            let find =
                |pattern: &[u8]| position(&bytes, pattern).map(|at| mapping.start + at as u64);
            // The vDSO has system calls, but none with a return behind it that could be relied on.
            if mapping.path != "[vdso]" {
                call = call.or_else(|| find(SYSCALL_RETURN));
                restorer = restorer.or_else(|| RESTORERS.into_iter().find_map(find));
            }
            syscall = syscall.or_else(|| find(SYSCALL));
        }
        Some(Gadgets { execution, syscall: call.or(syscall)?, call, restorer })
    }

    /// The same at the stop: another program may have been executed, or a library unloaded, since
    /// the search, and what is not there any more must not be used.
    pub(super) fn confirm(self, stopped: &Stopped) -> Option<Gadgets> {
        let restores = |&address: &u64| RESTORERS.iter().any(|form| stopped.holds(address, form));
        let confirmed = Gadgets {
            execution: self.execution,
            syscall: self.syscall,
            call: self.call.filter(|&address| stopped.holds(address, SYSCALL_RETURN)),
            restorer: self.restorer.filter(restores),
        };
        let is_same = self.execution.is_of(stopped) && stopped.holds(self.syscall, SYSCALL);
        is_same.then_some(confirmed)
    }
}

fn is_code(mapping: &Mapping) -> bool {
    (mapping.inode != 0 && !mapping.write && !mapping.shared) || mapping.path == "[vdso]"
}

/// The C library and the loader are never unmapped.
fn preference(path: &OsStr) -> u8 {
    let path = path.to_string_lossy();
    let name = path.rsplit('/').next().unwrap_or_default();
    match name {
        "[vdso]" => 3,
        _ if name.starts_with("libc.") || name.starts_with("libc-") => 0,
        _ if name.starts_with("ld-") => 1,
        _ => 2,
    }
}

fn position(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

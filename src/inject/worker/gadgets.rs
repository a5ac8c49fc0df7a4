//! The few instructions in the target's code that chains use.

use std::ffi::OsStr;
use std::io;

use super::execution::ExecIdentity;
use crate::inject::arch::{RESTORERS, SYSCALL, SYSCALL_RETURN};
use crate::inject::error::InjectError;
use crate::inject::stop::Stopped;
use crate::proc::{self, Mapping};

/// Most bytes of each mapping that are searched.
const SEARCH_MAX: u64 = 64 << 20;

/// The addresses of the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::inject) struct Gadgets {
    /// The execution that the addresses belong to.
    execution: ExecIdentity,
    /// A system call instruction.
    pub(in crate::inject) syscall: u64,
    /// `syscall; ret`.
    pub(in crate::inject) syscall_return: Option<u64>,
    /// A signal restorer.
    pub(in crate::inject) restorer: Option<u64>,
}

impl Gadgets {
    /// Finds the instructions in the mapped code. The caller has read the mappings in this
    /// execution.
    ///
    /// # Errors
    /// `Executed` if the process is in another execution or in an exec by now. Otherwise the code
    /// contains no system call, or code that could contain one cannot be read.
    pub(in crate::inject) fn find(
        pid: i32,
        execution: ExecIdentity,
        mappings: &[Mapping],
    ) -> Result<Gadgets, InjectError> {
        let found = Gadgets::search(pid, execution, mappings);
        if let Ok(Some(gadgets)) = found {
            return Ok(gadgets);
        }
        // In an exec, most of the program is not mapped yet.
        if !execution.is_current(pid)? {
            return Err(InjectError::Executed);
        }
        Err(match found {
            Err(error) => InjectError::system("reading the target's code", &error),
            Ok(_) => InjectError::BadPlan {
                reason: "the target's code contains no system call instruction".to_owned(),
            },
        })
    }

    /// Searches the mapped code, likely mappings first. Returns `None` if the code contains no
    /// system call at all.
    ///
    /// # Errors
    /// Code that could contain a system call cannot be read. The memory of a process that is being
    /// killed is gone before the process is.
    fn search(
        pid: i32,
        execution: ExecIdentity,
        mappings: &[Mapping],
    ) -> io::Result<Option<Gadgets>> {
        let mut code: Vec<&Mapping> =
            mappings.iter().filter(|m| m.exec && m.read && is_code(m)).collect();
        code.sort_by_key(|mapping| preference(&mapping.path));
        let (mut syscall, mut syscall_return, mut restorer) = (None, None, None);
        let mut unread = None;
        for mapping in code {
            if syscall_return.is_some() && restorer.is_some() {
                break;
            }
            let len = (mapping.end - mapping.start).min(SEARCH_MAX) as usize;
            let bytes = match proc::read_memory(pid, mapping.start, len) {
                Ok(bytes) => bytes,
                Err(error) => {
                    unread = Some(error);
                    continue;
                }
            };
            let find =
                |pattern: &[u8]| position(&bytes, pattern).map(|at| mapping.start + at as u64);
            // The vDSO has system calls, but none that is reliably followed by a return.
            if mapping.path != "[vdso]" {
                syscall_return = syscall_return.or_else(|| find(SYSCALL_RETURN));
                restorer = restorer.or_else(|| RESTORERS.into_iter().find_map(find));
            }
            syscall = syscall.or_else(|| find(SYSCALL));
        }
        match (syscall_return.or(syscall), unread) {
            (Some(syscall), _) => {
                Ok(Some(Gadgets { execution, syscall, syscall_return, restorer }))
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// Confirms the instructions for a stopped thread. Since the search, the process may have
    /// executed another program or unloaded a library.
    ///
    /// # Errors
    /// `Executed` if the process runs another program now, and the errors of reading its memory.
    pub(in crate::inject) fn confirm(self, stopped: &Stopped) -> Result<Gadgets, InjectError> {
        let mut confirmed = Gadgets { syscall_return: None, restorer: None, ..self };
        if let Some(address) = self.syscall_return
            && stopped.holds(address, SYSCALL_RETURN)?
        {
            confirmed.syscall_return = self.syscall_return;
        }
        for form in RESTORERS {
            if let Some(address) = self.restorer
                && stopped.holds(address, form)?
            {
                confirmed.restorer = self.restorer;
            }
        }
        let is_same = self.execution.is_of(stopped)? && stopped.holds(self.syscall, SYSCALL)?;
        if is_same { Ok(confirmed) } else { Err(InjectError::Executed) }
    }
}

fn is_code(mapping: &Mapping) -> bool {
    (mapping.inode != 0 && !mapping.write && !mapping.shared) || mapping.path == "[vdso]"
}

/// Ranks a mapping: the C library and the loader come first, because they are never unmapped.
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

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn unreadable_code_is_an_error_unless_other_code_has_a_system_call() {
        let pid = std::process::id() as i32;
        let mappings = proc::mappings(pid).unwrap();
        let code: Vec<Mapping> =
            mappings.into_iter().filter(|m| m.exec && m.read && is_code(m)).collect();
        let mut gone = code[0].clone();
        // Nothing is mapped there.
        (gone.start, gone.end) = (1 << 46, (1 << 46) + 4096);
        let execution = ExecIdentity::of(pid).unwrap();
        assert!(Gadgets::search(pid, execution, &[gone.clone()]).is_err());
        assert!(matches!(
            Gadgets::find(pid, execution, &[gone.clone()]),
            Err(InjectError::System { .. })
        ));
        let all = [&[gone][..], &code].concat();
        assert!(Gadgets::find(pid, execution, &all).is_ok());
        assert_eq!(Gadgets::search(pid, execution, &[]).unwrap(), None);
        assert!(matches!(Gadgets::find(pid, execution, &[]), Err(InjectError::BadPlan { .. })));
    }

    struct KilledOnDrop(Child);

    impl Drop for KilledOnDrop {
        fn drop(&mut self) {
            // It executes itself until then.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn program_in_an_exec_has_executed() {
        // Executes itself over and over.
        const AGAIN: &str = "exec sh -c \"$0\" \"$0\"";
        let child = KilledOnDrop(Command::new("sh").args(["-c", AGAIN, AGAIN]).spawn().unwrap());
        let pid = child.0.id() as i32;
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut found, mut executed) = (0, 0);
        while found < 20 || executed < 20 {
            assert!(Instant::now() < deadline, "{found} found, {executed} in an exec");
            let execution = ExecIdentity::of(pid).unwrap();
            let mappings = proc::mappings(pid).unwrap();
            match Gadgets::find(pid, execution, &mappings) {
                Ok(_) => found += 1,
                Err(InjectError::Executed) => executed += 1,
                Err(error) => panic!("{error:?}, {execution:?}, {mappings:?}"),
            }
        }
    }
}

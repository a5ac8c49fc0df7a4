//! The auxiliary vector, which the kernel passes to a program at its start.

use std::{fs, io};

/// `AT_RANDOM`: the address of random bytes from the kernel.
const RANDOM: u64 = 25;
/// `AT_HWCAP2`, with a bit for programs that may read the thread pointer by an instruction.
const CAPABILITIES: u64 = 26;
const FSGSBASE: u64 = 1 << 1;
/// `AT_MINSIGSTKSZ`.
const SIGNAL_STACK_MIN: u64 = 51;
/// The number of random bytes.
const RANDOM_LEN: usize = 16;

/// Returns the largest size of a signal frame in bytes; it grows with the processor's vector state.
pub fn signal_frame_len() -> Option<u64> {
    entry("self", SIGNAL_STACK_MIN)
}

/// Whether programs may read the thread pointer by an instruction: since Linux 5.9, if the
/// processor has it.
pub fn may_read_thread_pointer() -> bool {
    entry("self", CAPABILITIES).is_some_and(|bits| bits & FSGSBASE != 0)
}

/// Returns the random bytes that the kernel gave a process's program, and their address. They
/// distinguish one execution from the next. `None` for a 32-bit program, or if the bytes are not
/// readable. To notice the end of a program that may execute another user's, use [`super::Memory`].
///
/// # Errors
/// Returns an error if the process has no vector at this moment: it is in an exec, or has exited. A
/// leader that exited before its threads has none, either; use the id of one of its threads.
pub fn random_bytes(pid: i32) -> io::Result<Option<(u64, [u8; RANDOM_LEN])>> {
    let words = fs::read(format!("/proc/{pid}/auxv"))?;
    // Zero until the kernel fills it in when it loads the program.
    if words.iter().all(|byte| *byte == 0) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let Some(address) = find(&words, RANDOM) else { return Ok(None) };
    if let Ok(bytes) = super::read_memory(pid, address, RANDOM_LEN) {
        return Ok(bytes.try_into().ok().map(|bytes| (address, bytes)));
    }
    // The address is that of an earlier program if the process has executed another one since.
    if fs::read(format!("/proc/{pid}/auxv"))? == words {
        Ok(None)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn entry(process: &str, wanted: u64) -> Option<u64> {
    find(&fs::read(format!("/proc/{process}/auxv")).ok()?, wanted)
}

fn find(words: &[u8], wanted: u64) -> Option<u64> {
    let (pairs, _) = words.as_chunks::<16>();
    pairs.iter().find_map(|pair| {
        let (key, value) = pair.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
        (word(key)? == wanted).then(|| word(value)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn signal_frames_have_a_length() {
        // At least the legacy frame and the FXSAVE area, and no more than AMX needs.
        assert!(signal_frame_len().is_none_or(|len| (1000..20_000).contains(&len)));
    }

    #[test]
    fn the_thread_pointer_may_be_read_where_the_processor_can() {
        // The kernel's switch for the instruction is as old as its use.
        let can = crate::proc::has_processor_flag("fsgsbase");
        assert!(can || !may_read_thread_pointer());
    }

    #[test]
    fn each_execution_has_bytes_of_its_own() {
        let random = |pid| random_bytes(pid).ok().flatten();
        let own = random(std::process::id() as i32).unwrap();
        assert_eq!(random(std::process::id() as i32), Some(own));
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        // A parent continues before the kernel has written the vector of its child's program.
        let theirs = loop {
            match random_bytes(other.id() as i32) {
                Ok(bytes) => break bytes.expect("a program of 64 bits"),
                Err(_) => assert!(other.try_wait().unwrap().is_none(), "the child has exited"),
            }
        };
        assert_ne!(theirs.1, own.1);
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(random_bytes(other.id() as i32).is_err());
    }
}

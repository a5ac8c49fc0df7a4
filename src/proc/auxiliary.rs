//! The auxiliary vector: what the kernel tells a program at its start.

use std::{fs, io};

/// `AT_RANDOM`: the address of bytes that the kernel has drawn.
const RANDOM: u64 = 25;
/// `AT_HWCAP2`, and the bit of it that says that programs may read the thread pointer by an instruction.
const CAPABILITIES: u64 = 26;
const FSGSBASE: u64 = 1 << 1;
/// `AT_MINSIGSTKSZ`.
const SIGNAL_STACK_MIN: u64 = 51;
/// How many bytes are drawn.
const DRAWN: usize = 16;

/// The most bytes that the kernel puts on a stack when it delivers a signal; they grow with the
/// processor's vector state.
pub fn signal_frame_len() -> Option<u64> {
    entry("self", SIGNAL_STACK_MIN)
}

/// The kernel lets programs read the thread pointer by an instruction: since Linux 5.9, where the
/// processor has it.
pub fn may_read_thread_pointer() -> bool {
    entry("self", CAPABILITIES).is_some_and(|bits| bits & FSGSBASE != 0)
}

/// The bytes that the kernel drew for the program that a process executed last, and where they are:
/// they tell one execution from the next. `None` of a 32-bit program, or if they cannot be read: whoever
/// must know when a program is gone that may execute another user's asks its [`super::Memory`].
///
/// # Errors
/// If the process has no vector at this moment: it executes a program just now, or has ended. So has a
/// leader that left its threads behind; of them any may be asked.
pub fn drawn_bytes(pid: i32) -> io::Result<Option<(u64, [u8; DRAWN])>> {
    let words = fs::read(format!("/proc/{pid}/auxv"))?;
    // The kernel makes it zero, and fills it in when the program is loaded.
    if words.iter().all(|byte| *byte == 0) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let Some(address) = find(&words, RANDOM) else { return Ok(None) };
    let bytes = super::read_memory(pid, address, DRAWN).ok();
    Ok(bytes.and_then(|bytes| Some((address, bytes.try_into().ok()?))))
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
        // The legacy frame and the FXSAVE area at least, and no more than AMX needs.
        assert!(signal_frame_len().is_none_or(|len| (1000..20_000).contains(&len)));
    }

    #[test]
    fn the_thread_pointer_may_be_read_where_the_processor_can() {
        // The kernel's own switch for it is as old as its use.
        let can = crate::proc::has_processor_flag("fsgsbase");
        assert!(can || !may_read_thread_pointer());
    }

    #[test]
    fn each_execution_has_bytes_of_its_own() {
        let drawn = |pid| drawn_bytes(pid).ok().flatten();
        let own = drawn(std::process::id() as i32).unwrap();
        assert_eq!(drawn(std::process::id() as i32), Some(own));
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        // Who starts a program goes on before the kernel has written its vector.
        let theirs = loop {
            match drawn_bytes(other.id() as i32) {
                Ok(bytes) => break bytes.expect("a program of 64 bits"),
                Err(_) => assert!(other.try_wait().unwrap().is_none(), "it has ended"),
            }
        };
        assert_ne!(theirs.1, own.1);
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(drawn_bytes(other.id() as i32).is_err());
    }
}

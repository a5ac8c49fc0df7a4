//! The check whether two processes share a kernel resource.
//!
//! # Safety
//! One system call that no crate in use wraps; it takes numbers.
#![allow(unsafe_code, reason = "kcmp")]

/// Whether two processes use the same memory; `None` if the kernel does not say.
pub fn shares_memory(pid: i32, other: i32) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: takes numbers only.
    match unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) } {
        -1 => None,
        order => Some(order == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_shares_its_memory_with_itself_and_not_with_a_child_that_executed() {
        let own = std::process::id() as i32;
        // A kernel may be built without the call, or a filter may forbid it.
        assert_ne!(shares_memory(own, own), Some(false));
        let mut child = std::process::Command::new("sleep").arg("120").spawn().unwrap();
        assert_ne!(shares_memory(own, child.id() as i32), Some(true));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shares_memory(own, child.id() as i32), None);
    }
}

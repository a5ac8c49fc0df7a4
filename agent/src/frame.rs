//! The signal frame that the kernel leaves for the handler, and the arguments of other callers.
//!
//! # Safety
//! The arguments of a caller other than the kernel are probed before they are read.

use core::mem::offset_of;
use core::ptr;

use crate::probe::is_readable;
use crate::sys::{SigInfo, UserContext};

/// The start of the kernel's `struct rt_sigframe`.
#[repr(C)]
#[derive(Debug)]
pub struct KernelFrame {
    /// The return address of the handler: the restorer.
    pub return_slot: u64,
    /// The interrupted context.
    pub context: UserContext,
    /// The signal's information.
    pub info: SigInfo,
}
const _: () = assert!(size_of::<UserContext>() == 304);

/// The data that the kernel put on the stack for the handler.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The signal's information.
    pub info: &'a SigInfo,
    /// The interrupted context.
    pub context: &'a UserContext,
    /// The return address of the handler: the restorer.
    pub return_slot: &'a mut u64,
    /// Whether the kernel called the handler by the agent's own action: on the kernel's frame, from
    /// which it returns by the agent's restorer. That action's mask blocks all signals until then.
    pub is_direct: bool,
}

impl<'a> Frame<'a> {
    /// Returns the frame of a call of the handler; `None` if its arguments do not describe the
    /// signal.
    ///
    /// An application that has put its own handler over the agent's may call the agent's as a
    /// function, with other structures than the kernel's or with the signal's number alone.
    ///
    /// # Safety
    /// `return_slot` is the stack pointer at the handler's entry. The other arguments are those of
    /// the call, which outlive the frame if they are structures, and the agent's restorer.
    pub unsafe fn of_call(
        (signal, info, context): (i32, *const SigInfo, *const UserContext),
        return_slot: *mut u64,
        restorer: u64,
    ) -> Option<Self> {
        let is_kernels = is_kernel_frame(return_slot, context, info);
        let is_sound = is_kernels || (is_structure(info) && is_structure(context));
        if !is_sound {
            return None;
        }
        // SAFETY: the kernel wrote it for this handler, or it is aligned and was readable just now.
        let info = unsafe { &*info };
        // SAFETY: as above.
        let context = unsafe { &*context };
        // SAFETY: the slot contains the handler's return address, and nothing else refers to it.
        let return_slot = unsafe { &mut *return_slot };
        let is_direct = is_kernels && *return_slot == restorer;
        // Without SA_SIGINFO, the kernel does not write the information.
        (info.signo == signal).then_some(Self { info, context, return_slot, is_direct })
    }

    /// Whether the handler runs on the kernel's frame, so that it returns by a restorer. If not, a
    /// function of the application called it and waits for its return.
    pub fn is_kernels(&self) -> bool {
        is_kernel_frame(&raw const *self.return_slot, self.context, self.info)
    }
}

/// Whether these three are parts of one [`KernelFrame`].
fn is_kernel_frame(
    return_slot: *const u64,
    context: *const UserContext,
    info: *const SigInfo,
) -> bool {
    let start = return_slot.cast::<u8>();
    let part = |offset: usize| start.wrapping_add(offset);
    ptr::eq(part(offset_of!(KernelFrame, context)), context.cast())
        && ptr::eq(part(offset_of!(KernelFrame, info)), info.cast())
}

/// Whether a structure, smaller than a page, is aligned and can be read.
fn is_structure<T>(pointer: *const T) -> bool {
    pointer.is_aligned() && is_readable(pointer.addr() as u64, size_of::<T>() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNAL: i32 = 18;
    const RESTORER: u64 = 0x1234;

    fn of_call(
        kernel: &mut KernelFrame,
        change: impl FnOnce(&mut *const SigInfo, &mut *const UserContext),
    ) -> Option<bool> {
        let (mut info, mut context) = (&raw const kernel.info, &raw const kernel.context);
        change(&mut info, &mut context);
        // SAFETY: parts of one structure, or pointers that are probed.
        let frame =
            unsafe { Frame::of_call((SIGNAL, info, context), &mut kernel.return_slot, RESTORER) };
        frame.map(|it| {
            let is_direct = it.is_kernels() && *it.return_slot == RESTORER;
            assert_eq!(it.is_direct, is_direct);
            it.is_kernels()
        })
    }

    #[test]
    fn arguments_of_any_caller_are_read_only_if_they_can_be() {
        // SAFETY: zeroes are a valid value of structures of integers.
        let (mut kernel, other): (KernelFrame, KernelFrame) = unsafe { std::mem::zeroed() };
        assert_eq!(of_call(&mut kernel, |_, _| {}), None, "no SA_SIGINFO: another signal's");
        kernel.info.signo = SIGNAL;
        assert_eq!(of_call(&mut kernel, |_, _| {}), Some(true));
        kernel.return_slot = RESTORER;
        assert_eq!(of_call(&mut kernel, |_, _| {}), Some(true));
        let elsewhere = |_: &mut *const SigInfo, it: &mut *const UserContext| *it = &other.context;
        assert_eq!(of_call(&mut kernel, elsewhere), Some(false), "a function's call");
        assert_eq!(of_call(&mut kernel, |info, _| *info = &other.info), None, "another signal's");
        for wild in [0, 8, 3, usize::MAX - 7] {
            let wild_info: *const SigInfo = ptr::without_provenance(wild);
            assert_eq!(of_call(&mut kernel, |info, _| *info = wild_info), None, "{wild:x}");
            let wild_context: *const UserContext = ptr::without_provenance(wild);
            assert_eq!(of_call(&mut kernel, |_, it| *it = wild_context), None, "{wild:x}");
        }
    }
}

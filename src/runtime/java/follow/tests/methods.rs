//! Compiled methods.

use super::*;

#[test]
fn prologue_and_epilogue_of_c2() {
    let code = [
        // sub $0x18,%rsp
        at(&[0x48, 0x83, 0xec, 0x18], sp(8)),
        // mov %rbp,0x10(%rsp)
        at(&[0x48, 0x89, 0x6c, 0x24, 0x10], sp(32)),
        // nopl (%rax)
        at(&[0x0f, 0x1f, 0x00], saved(sp(32))),
        // test %eax,%eax
        at(&[0x85, 0xc0], saved(sp(32))),
        // je 15
        at(&[0x74, 0x05], saved(sp(32))),
        // call 1000000
        at(&[0xe8, 0xeb, 0xff, 0xff, 0x00], saved(sp(32))),
        // add $0x10,%rsp
        at(&[0x48, 0x83, 0xc4, 0x10], saved(sp(32))),
        // pop %rbp
        at(&[0x5d], saved(sp(16))),
        // cmp 0x108(%r15),%rsp
        at(&[0x49, 0x3b, 0xa7, 0x08, 0x01, 0x00, 0x00], sp(8)),
        // ja 24
        at(&[0x77, 0x01], sp(8)),
        // ret
        at(&[0xc3], sp(8)),
        // mov %r10,0x358(%r15)
        at(&[0x4d, 0x89, 0x97, 0x58, 0x03, 0x00, 0x00], sp(8)),
        // jmp 1000000
        at(&[0xe9, 0xd0, 0xff, 0xff, 0x00], sp(8)),
    ];
    check(method(4, 9), &code);
}

#[test]
fn prologue_of_c1_and_a_return_in_the_middle() {
    let code = [
        // mov %eax,-0x14000(%rsp)
        at(&[0x89, 0x84, 0x24, 0x00, 0xc0, 0xfe, 0xff], sp(8)),
        // push %rbp
        at(&[0x55], sp(8)),
        // sub $0x30,%rsp
        at(&[0x48, 0x83, 0xec, 0x30], saved(sp(16))),
        // test %esi,%esi
        at(&[0x85, 0xf6], saved(sp(64))),
        // jne 16
        at(&[0x75, 0x06], saved(sp(64))),
        // add $0x30,%rsp
        at(&[0x48, 0x83, 0xc4, 0x30], saved(sp(64))),
        // pop %rbp
        at(&[0x5d], saved(sp(16))),
        // ret
        at(&[0xc3], sp(8)),
        // mov %rsi,0x8(%rsp)
        at(&[0x48, 0x89, 0x74, 0x24, 0x08], saved(sp(64))),
        // jmp 1000000
        at(&[0xe9, 0xe0, 0xff, 0xff, 0x00], saved(sp(64))),
    ];
    check(method(8, 12), &code);
}

#[test]
fn patched_entry_leads_nowhere_and_the_body_is_followed() {
    let code = [
        // jmp 1000000
        at(&[0xe9, 0xfb, 0xff, 0xff, 0x00], sp(8)),
        // add %al,(%rax)
        at(&[0x00, 0x00], BAD),
        // push %rbp
        at(&[0x55], BAD),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], BAD),
        // inc %eax
        at(&[0xff, 0xc0], saved(sp(48))),
        // add $0x20,%rsp
        at(&[0x48, 0x83, 0xc4, 0x20], saved(sp(48))),
        // pop %rbp
        at(&[0x5d], saved(sp(16))),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(method(6, 12), &code);
}

#[test]
fn words_that_c1_pushes_for_a_call() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // push %rax
        at(&[0x50], saved(sp(48))),
        // push %rcx
        at(&[0x51], saved(sp(56))),
        // call 1000000
        at(&[0xe8, 0xf4, 0xff, 0xff, 0x00], saved(sp(64))),
        // pop %rax
        at(&[0x58], saved(sp(64))),
        // pop %rcx
        at(&[0x59], saved(sp(56))),
        // add $0x20,%rsp
        at(&[0x48, 0x83, 0xc4, 0x20], saved(sp(48))),
        // pop %rbp
        at(&[0x5d], saved(sp(16))),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(method(6, 5), &code);
}

#[test]
fn two_depths_meet_and_the_saved_stack_pointer_is_found() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // mov %rsp,%rbx
        at(&[0x48, 0x89, 0xe3], saved(sp(48))),
        // test %ecx,%ecx
        at(&[0x85, 0xc9], saved(sp(48))),
        // je f
        at(&[0x74, 0x03], saved(sp(48))),
        // push %rbx
        at(&[0x53], saved(sp(48))),
        // jmp 14
        at(&[0xeb, 0x05], saved(sp(56))),
        // sub $0x10,%rsp
        at(&[0x48, 0x83, 0xec, 0x10], saved(sp(48))),
        // push %rbx
        at(&[0x53], saved(sp(64))),
        // xor %ebx,%ebx
        at(&[0x31, 0xdb], saved(by(3, 48))),
        // inc %eax
        at(&[0xff, 0xc0], saved(saved_at(0, 48))),
        // pop %rsp
        at(&[0x5c], saved(saved_at(0, 48))),
        // inc %eax
        at(&[0xff, 0xc0], saved(sp(48))),
        // add $0x20,%rsp
        at(&[0x48, 0x83, 0xc4, 0x20], saved(sp(48))),
        // pop %rbp
        at(&[0x5d], saved(sp(16))),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(method(6, 5), &code);
}

#[test]
fn two_depths_meet_and_are_unknown() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // test %ecx,%ecx
        at(&[0x85, 0xc9], saved(sp(48))),
        // je a
        at(&[0x74, 0x01], saved(sp(48))),
        // push %rdx
        at(&[0x52], saved(sp(48))),
        // inc %eax
        at(&[0xff, 0xc0], BAD),
        // call 1000000
        calls(&[0xe8, 0xef, 0xff, 0xff, 0x00], BAD, saved(sp(48))),
        // pop %rsp
        at(&[0x5c], BAD),
        // inc %eax
        at(&[0xff, 0xc0], saved(sp(48))),
        // jmp 1000000
        at(&[0xe9, 0xe7, 0xff, 0xff, 0x00], saved(sp(48))),
    ];
    check(method(6, 5), &code);
}

#[test]
fn deoptimized_frames_continue_at_the_handler() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // jmp 1000000
        at(&[0xe9, 0xf6, 0xff, 0xff, 0x00], saved(sp(48))),
        // hlt
        at(&[0xf4], deoptimized(48, 3)),
        // call 10
        at(&[0xe8, 0x00, 0x00, 0x00, 0x00], saved(sp(48))),
        // subq $0x5,(%rsp)
        at(&[0x48, 0x83, 0x2c, 0x24, 0x05], saved(sp(56))),
        // jmp 1000000
        at(&[0xe9, 0xe6, 0xff, 0xff, 0x00], saved(sp(56))),
    ];
    let deoptimized = Deoptimized { handlers: &[11], original_words: 3 };
    check(GeneratedCode { deoptimized, ..method(6, 5) }, &code);
}

#[test]
fn handler_of_an_exception_that_no_jump_leads_to() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // jmp 1000000
        at(&[0xe9, 0xf6, 0xff, 0xff, 0x00], saved(sp(48))),
        // nop
        at(&[0x90], saved(sp(48))),
        // nop
        at(&[0x90], saved(sp(48))),
        // inc %eax
        at(&[0xff, 0xc0], saved(sp(48))),
        // add $0x20,%rsp
        at(&[0x48, 0x83, 0xc4, 0x20], saved(sp(48))),
        // pop %rbp
        at(&[0x5d], saved(sp(16))),
        // jmp 1000000
        at(&[0xe9, 0xe8, 0xff, 0xff, 0x00], sp(8)),
    ];
    check(method(6, 5), &code);
}

#[test]
fn stub_through_which_calls_go() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // jmp 1000000
        at(&[0xe9, 0xf6, 0xff, 0xff, 0x00], saved(sp(48))),
        // movabs $0x7f0011223344,%rbx
        at(&[0x48, 0xbb, 0x44, 0x33, 0x22, 0x11, 0x00, 0x7f, 0x00, 0x00], sp(8)),
        // jmp 1000000
        at(&[0xe9, 0xe7, 0xff, 0xff, 0x00], sp(8)),
    ];
    check(method(6, 5), &code);
}

#[test]
fn function_that_never_returns_is_followed_by_other_code() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // test %eax,%eax
        at(&[0x85, 0xc0], saved(sp(48))),
        // je 13
        at(&[0x74, 0x0a], saved(sp(48))),
        // add $0x20,%rsp
        at(&[0x48, 0x83, 0xc4, 0x20], saved(sp(48))),
        // pop %rbp
        at(&[0x5d], saved(sp(16))),
        // test %ecx,%ecx
        at(&[0x85, 0xc9], sp(8)),
        // je 18
        at(&[0x74, 0x06], sp(8)),
        // ret
        at(&[0xc3], sp(8)),
        // call 1000000
        at(&[0xe8, 0xe8, 0xff, 0xff, 0x00], saved(sp(48))),
        // inc %eax
        at(&[0xff, 0xc0], sp(8)),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(method(6, 5), &code);
}

#[test]
fn wrapper_of_a_native_method() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // mov %rsp,%rbp
        at(&[0x48, 0x89, 0xe5], saved(sp(16))),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // mov %rsp,%r12
        at(&[0x49, 0x89, 0xe4], saved(sp(48))),
        // and $0xfffffffffffffff0,%rsp
        at(&[0x48, 0x83, 0xe4, 0xf0], saved(sp(48))),
        // call 1000000
        at(&[0xe8, 0xec, 0xff, 0xff, 0x00], saved(fp(16))),
        // mov %r12,%rsp
        at(&[0x4c, 0x89, 0xe4], saved(fp(16))),
        // xor %r12d,%r12d
        at(&[0x45, 0x31, 0xe4], saved(sp(48))),
        // leave
        at(&[0xc9], saved(sp(48))),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(method(6, 8), &code);
}

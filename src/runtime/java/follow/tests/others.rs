//! The interpreter, adapters and stubs.

use super::*;

#[test]
fn entry_of_an_interpreted_method() {
    let code = [
        // movzwl 0x2c(%rbx),%edx
        at(&[0x0f, 0xb7, 0x53, 0x2c], sender(13, 0, IN_RBX)),
        // pop %rax
        at(&[0x58], sender(13, 0, IN_RBX)),
        // test %edx,%edx
        at(&[0x85, 0xd2], from(IN_RBX, [13, 6, 0])),
        // jle f
        at(&[0x7e, 0x06], from(IN_RBX, [13, 6, 0])),
        // push $0x0
        at(&[0x6a, 0x00], from(IN_RBX, [13, 6, 0])),
        // dec %edx
        at(&[0xff, 0xca], from(IN_RBX, [13, 6, 0])),
        // jg 9
        at(&[0x7f, 0xfa], from(IN_RBX, [13, 6, 0])),
        // push %rax
        at(&[0x50], from(IN_RBX, [13, 6, 0])),
        // push %rbp
        at(&[0x55], sender(13, 0, IN_RBX)),
        // mov %rsp,%rbp
        at(&[0x48, 0x89, 0xe5], sender(13, 8, IN_RBX)),
        // push %r13
        at(&[0x41, 0x55], at_sp(0, sender(13, 8, IN_RBX))),
        // push $0x0
        at(&[0x6a, 0x00], interpreted(IN_RBX)),
        // mov 0x8(%rbx),%r13
        at(&[0x4c, 0x8b, 0x6b, 0x08], interpreted(IN_RBX)),
        // push %rbx
        at(&[0x53], interpreted(IN_RBX)),
        // xor %ebx,%ebx
        at(&[0x31, 0xdb], interpreted(IN_FRAME)),
        // push $0x0
        at(&[0x6a, 0x00], interpreted(IN_FRAME)),
        // call 1000000
        at(&[0xe8, 0xda, 0xff, 0xff, 0x00], interpreted(IN_FRAME)),
        // mov -0x18(%rbp),%rbx
        at(&[0x48, 0x8b, 0x5d, 0xe8], interpreted(IN_FRAME)),
    ];
    check(plain(GeneratedKind::InterpreterEntry), &code);
}

#[test]
fn intrinsic_that_the_interpreter_enters() {
    let code = [
        // movsd 0x8(%rsp),%xmm0
        at(&[0xf2, 0x0f, 0x10, 0x44, 0x24, 0x08], sender(13, 0, IN_RBX)),
        // sqrtsd %xmm0,%xmm0
        at(&[0xf2, 0x0f, 0x51, 0xc0], sender(13, 0, IN_RBX)),
        // pop %rax
        at(&[0x58], sender(13, 0, IN_RBX)),
        // mov %r13,%rsp
        at(&[0x4c, 0x89, 0xec], from(IN_RBX, [13, 6, 0])),
        // jmp *%rax
        at(&[0xff, 0xe0], from(IN_RBX, [13, 6, 0])),
    ];
    check(plain(GeneratedKind::InterpreterEntry), &code);
}

#[test]
fn return_of_an_interpreted_method() {
    let code = [
        // push %rax
        at(&[0x50], interpreted(IN_FRAME)),
        // mov -0x8(%rbp),%rbx
        at(&[0x48, 0x8b, 0x5d, 0xf8], interpreted(IN_FRAME)),
        // leave
        at(&[0xc9], interpreted(IN_FRAME)),
        // pop %rdi
        at(&[0x5f], sender(3, 0, NONE)),
        // mov %rbx,%rsp
        at(&[0x48, 0x89, 0xdc], from(NONE, [3, 6, 5])),
        // jmp *%rdi
        at(&[0xff, 0xe7], from(NONE, [7, 6, 5])),
    ];
    check(plain(GeneratedKind::Interpreter), &code);
}

#[test]
fn exception_that_leaves_an_interpreted_method() {
    let code = [
        // mov -0x8(%rbp),%rbx
        at(&[0x48, 0x8b, 0x5d, 0xf8], interpreted(IN_FRAME)),
        // leave
        at(&[0xc9], interpreted(IN_FRAME)),
        // pop %rdx
        at(&[0x5a], sender(3, 0, NONE)),
        // mov %rbx,%rsp
        at(&[0x48, 0x89, 0xdc], from(NONE, [3, 6, 1])),
        // push %rax
        at(&[0x50], from(NONE, [7, 6, 1])),
        // push %rdx
        at(&[0x52], in_register(1, 8)),
        // test $0xf,%esp
        at(&[0xf7, 0xc4, 0x0f, 0x00, 0x00, 0x00], in_register(1, 16)),
        // je 22
        at(&[0x74, 0x0f], in_register(1, 16)),
        // sub $0x8,%rsp
        at(&[0x48, 0x83, 0xec, 0x08], in_register(1, 16)),
        // call 1000000
        calls(&[0xe8, 0xe4, 0xff, 0xff, 0x00], in_register(1, 24), below(16, 1)),
        // add $0x8,%rsp
        at(&[0x48, 0x83, 0xc4, 0x08], sender(3, 8, NONE)),
        // jmp 27
        at(&[0xeb, 0x05], sender(3, 0, NONE)),
        // call 1000000
        calls(&[0xe8, 0xd9, 0xff, 0xff, 0x00], in_register(1, 16), below(8, 1)),
        // mov %rax,%rbx
        at(&[0x48, 0x89, 0xc3], sender(3, 0, NONE)),
        // pop %rdx
        at(&[0x5a], below(8, 1)),
        // pop %rax
        at(&[0x58], in_register(1, 8)),
        // jmp *%rbx
        at(&[0xff, 0xe3], in_register(1, 0)),
    ];
    check(plain(GeneratedKind::Interpreter), &code);
}

/// The caller goes on at the handler itself, and not behind its call.
#[test]
fn function_that_returns_to_the_handler_of_an_exception() {
    let injected = |bytes| with(op::SP_INJECTED, bytes);
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // mov %rsp,%rbp
        at(&[0x48, 0x89, 0xe5], saved(sp(16))),
        // mov %rax,0x8(%rbp)
        at(&[0x48, 0x89, 0x45, 0x08], saved(sp(16))),
        // leave
        at(&[0xc9], saved(injected(16))),
        // ret
        at(&[0xc3], injected(8)),
    ];
    check(plain(GeneratedKind::RuntimeStub), &code);
}

#[test]
fn interpreter_calls_the_machine_within_the_frame() {
    let code = [
        // call 7
        at(&[0xe8, 0x02, 0x00, 0x00, 0x00], interpreted(IN_FRAME)),
        // jmp 28
        at(&[0xeb, 0x21], interpreted(IN_FRAME)),
        // lea 0x8(%rsp),%rax
        at(&[0x48, 0x8d, 0x44, 0x24, 0x08], interpreted(IN_FRAME)),
        // test $0xf,%esp
        at(&[0xf7, 0xc4, 0x0f, 0x00, 0x00, 0x00], interpreted(IN_FRAME)),
        // je 22
        at(&[0x74, 0x0e], interpreted(IN_FRAME)),
        // sub $0x8,%rsp
        at(&[0x48, 0x83, 0xec, 0x08], interpreted(IN_FRAME)),
        // call 1000000
        at(&[0xe8, 0xe3, 0xff, 0xff, 0x00], interpreted(IN_FRAME)),
        // add $0x8,%rsp
        at(&[0x48, 0x83, 0xc4, 0x08], interpreted(IN_FRAME)),
        // ret
        at(&[0xc3], interpreted(IN_FRAME)),
        // call 1000000
        at(&[0xe8, 0xd9, 0xff, 0xff, 0x00], interpreted(IN_FRAME)),
        // ret
        at(&[0xc3], interpreted(IN_FRAME)),
        // movzbl 0x0(%r13),%ebx
        at(&[0x41, 0x0f, 0xb6, 0x5d, 0x00], interpreted(IN_FRAME)),
        // jmp *%r10
        at(&[0x41, 0xff, 0xe2], interpreted(IN_FRAME)),
    ];
    check(plain(GeneratedKind::Interpreter), &code);
}

#[test]
fn registers_that_the_interpreter_saves_around_an_aligned_call() {
    let code = [
        // sub $0x80,%rsp
        at(&[0x48, 0x81, 0xec, 0x80, 0x00, 0x00, 0x00], interpreted(IN_FRAME)),
        // mov %rbp,0x50(%rsp)
        at(&[0x48, 0x89, 0x6c, 0x24, 0x50], interpreted(IN_FRAME)),
        // mov %rsp,%r12
        at(&[0x49, 0x89, 0xe4], interpreted(IN_FRAME)),
        // and $0xfffffffffffffff0,%rsp
        at(&[0x48, 0x83, 0xe4, 0xf0], interpreted(IN_FRAME)),
        // call 1000000
        at(&[0xe8, 0xe8, 0xff, 0xff, 0x00], interpreted(IN_FRAME)),
        // mov %r12,%rsp
        at(&[0x4c, 0x89, 0xe4], interpreted(IN_FRAME)),
        // mov 0x50(%rsp),%rbp
        at(&[0x48, 0x8b, 0x6c, 0x24, 0x50], interpreted(IN_FRAME)),
        // add $0x80,%rsp
        at(&[0x48, 0x81, 0xc4, 0x80, 0x00, 0x00, 0x00], interpreted(IN_FRAME)),
        // inc %eax
        at(&[0xff, 0xc0], interpreted(IN_FRAME)),
        // jmp *%r10
        at(&[0x41, 0xff, 0xe2], interpreted(IN_FRAME)),
    ];
    check(plain(GeneratedKind::Interpreter), &code);
}

#[test]
fn adapter_to_the_interpreter() {
    let code = [
        // mov (%rsp),%rax
        at(&[0x48, 0x8b, 0x04, 0x24], sp(8)),
        // jmp *%rax
        at(&[0xff, 0xe0], sp(8)),
        // pop %rax
        at(&[0x58], sp(8)),
        // mov %rsp,%r13
        at(&[0x49, 0x89, 0xe5], in_register(0, 0)),
        // sub $0x10,%rsp
        at(&[0x48, 0x83, 0xec, 0x10], in_register(0, 0)),
        // mov %rax,(%rsp)
        at(&[0x48, 0x89, 0x04, 0x24], in_register(0, 16)),
        // mov %rsi,0x8(%rsp)
        at(&[0x48, 0x89, 0x74, 0x24, 0x08], in_register(0, 16)),
        // mov 0x38(%rbx),%rcx
        at(&[0x48, 0x8b, 0x4b, 0x38], in_register(0, 16)),
        // xor %eax,%eax
        at(&[0x31, 0xc0], in_register(0, 16)),
        // jmp *%rcx
        at(&[0xff, 0xe1], sender(13, 0, NONE)),
    ];
    check(plain(GeneratedKind::Adapter), &code);
}

#[test]
fn virtual_call() {
    let code = [
        // mov 0x8(%rsi),%eax
        at(&[0x8b, 0x46, 0x08], sp(8)),
        // mov 0x1b8(%rax),%rbx
        at(&[0x48, 0x8b, 0x98, 0xb8, 0x01, 0x00, 0x00], sp(8)),
        // jmp *0x40(%rbx)
        at(&[0xff, 0x63, 0x40], sp(8)),
    ];
    check(plain(GeneratedKind::VirtualCall), &code);
}

#[test]
fn functions_in_a_blob_of_stubs() {
    let code = [
        // xor %eax,%eax
        at(&[0x31, 0xc0], sp(8)),
        // ret
        at(&[0xc3], sp(8)),
        // nopw (%rax,%rax,1)
        at(&[0x66, 0x0f, 0x1f, 0x04, 0x00], BAD),
        // inc %eax
        at(&[0xff, 0xc0], sp(8)),
        // ret
        at(&[0xc3], sp(8)),
        // hlt
        at(&[0xf4], sp(8)),
        // push %rbp
        at(&[0x55], sp(8)),
        // mov %rsp,%rbp
        at(&[0x48, 0x89, 0xe5], saved(sp(16))),
        // sub $0x20,%rsp
        at(&[0x48, 0x83, 0xec, 0x20], saved(sp(16))),
        // push (%rcx)
        at(&[0xff, 0x31], saved(fp(16))),
        // dec %edx
        at(&[0xff, 0xca], saved(fp(16))),
        // jne 14
        at(&[0x75, 0xfa], saved(fp(16))),
        // call *%rsi
        at(&[0xff, 0xd6], saved(fp(16))),
        // lea -0x20(%rbp),%rsp
        at(&[0x48, 0x8d, 0x65, 0xe0], saved(fp(16))),
        // leave
        at(&[0xc9], saved(sp(48))),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(plain(GeneratedKind::Stubs), &code);
}

#[test]
fn stub_that_pushes_a_constant_before_its_frame() {
    // Below the constant.
    let body = |cfa: Rule| Rule { fp_off: -3, ..saved(cfa) };
    let code = [
        // hlt, behind another stub
        at(&[0xf4], sp(8)),
        // push $-1
        at(&[0x68, 0xff, 0xff, 0xff, 0xff], sp(8)),
        // push %rbp
        at(&[0x55], sp(16)),
        // mov %rsp,%rbp
        at(&[0x48, 0x8b, 0xec], body(sp(24))),
        // call *%rsi
        at(&[0xff, 0xd6], body(sp(24))),
        // leave
        at(&[0xc9], body(sp(24))),
        // add $8,%rsp
        at(&[0x48, 0x83, 0xc4, 0x08], sp(16)),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(plain(GeneratedKind::Stubs), &code);
}

#[test]
fn stub_that_aligns_and_saves_the_stack_pointer() {
    let code = [
        // push %rbx
        at(&[0x53], sp(8)),
        // mov %rsp,%rax
        at(&[0x48, 0x89, 0xe0], sp(16)),
        // sub $0x220,%rsp
        at(&[0x48, 0x81, 0xec, 0x20, 0x02, 0x00, 0x00], sp(16)),
        // and $0xffffffffffffffe0,%rsp
        at(&[0x48, 0x83, 0xe4, 0xe0], sp(560)),
        // mov %rax,0x200(%rsp)
        at(&[0x48, 0x89, 0x84, 0x24, 0x00, 0x02, 0x00, 0x00], by(0, 16)),
        // xor %eax,%eax
        at(&[0x31, 0xc0], by(0, 16)),
        // inc %ecx
        at(&[0xff, 0xc1], saved_at(512, 16)),
        // mov 0x200(%rsp),%rsp
        at(&[0x48, 0x8b, 0xa4, 0x24, 0x00, 0x02, 0x00, 0x00], saved_at(512, 16)),
        // pop %rbx
        at(&[0x5b], sp(16)),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(plain(GeneratedKind::RuntimeStub), &code);
}

#[test]
fn exception_has_its_address_in_a_register() {
    let code = [
        // push %rdx
        at(&[0x52], in_register(1, 0)),
        // sub $0x8,%rsp
        at(&[0x48, 0x83, 0xec, 0x08], sp(8)),
        // mov %rbp,(%rsp)
        at(&[0x48, 0x89, 0x2c, 0x24], sp(16)),
        // and $0xfffffffffffffff0,%rsp
        at(&[0x48, 0x83, 0xe4, 0xf0], saved(sp(16))),
        // call 1000000
        at(&[0xe8, 0xee, 0xff, 0xff, 0x00], saved(sp(16))),
        // mov (%rsp),%rbp
        at(&[0x48, 0x8b, 0x2c, 0x24], saved(sp(16))),
        // add $0x8,%rsp
        at(&[0x48, 0x83, 0xc4, 0x08], saved(sp(16))),
        // pop %rdx
        at(&[0x5a], sp(8)),
        // jmp *%r8
        at(&[0x41, 0xff, 0xe0], in_register(1, 0)),
    ];
    check(GeneratedCode { frame_words: 2, ..plain(GeneratedKind::Exception) }, &code);
}

#[test]
fn deoptimization_replaces_its_frame() {
    let code = [
        // push %rbp
        at(&[0x55], sp(8)),
        // mov %rsp,%rbp
        at(&[0x48, 0x89, 0xe5], saved(sp(16))),
        // sub $0x100,%rsp
        at(&[0x48, 0x81, 0xec, 0x00, 0x01, 0x00, 0x00], saved(sp(16))),
        // call 1000000
        at(&[0xe8, 0xf0, 0xff, 0xff, 0x00], saved(sp(272))),
        // add $0x108,%rsp
        at(&[0x48, 0x81, 0xc4, 0x08, 0x01, 0x00, 0x00], saved(sp(272))),
        // mov (%rdi),%ecx
        at(&[0x8b, 0x0f], lost(sp(8))),
        // add %rcx,%rsp
        at(&[0x48, 0x01, 0xcc], lost(sp(8))),
        // mov 0x30(%rdi),%rbp
        at(&[0x48, 0x8b, 0x6f, 0x30], lost(fp(16))),
        // push (%rcx)
        at(&[0xff, 0x31], BAD),
        // push %rbp
        at(&[0x55], BAD),
        // mov %rsp,%rbp
        at(&[0x48, 0x89, 0xe5], BAD),
        // sub %rbx,%rsp
        at(&[0x48, 0x29, 0xdc], saved(sp(16))),
        // call 1000000
        at(&[0xe8, 0xd2, 0xff, 0xff, 0x00], saved(fp(16))),
        // leave
        at(&[0xc9], saved(fp(16))),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(GeneratedCode { frame_words: 35, ..plain(GeneratedKind::Deoptimization) }, &code);
}

#[test]
fn function_that_is_entered_with_a_frame() {
    let code = [
        // mov 0x8(%rbp),%rdx
        at(&[0x48, 0x8b, 0x55, 0x08], saved(fp(16))),
        // mov %rdx,0x8(%rbp)
        at(&[0x48, 0x89, 0x55, 0x08], saved(fp(16))),
        // call 1000000
        at(&[0xe8, 0xf3, 0xff, 0xff, 0x00], saved(fp(16))),
        // leave
        at(&[0xc9], saved(fp(16))),
        // ret
        at(&[0xc3], sp(8)),
    ];
    check(plain(GeneratedKind::FramedStub), &code);
}

#[test]
fn function_of_a_poll_in_a_method() {
    /// The return address is that of the poll, not behind a call.
    const fn polled(bytes: i32) -> Rule {
        with(op::SP_INJECTED, bytes)
    }
    let code = [
        // push %rbx
        at(&[0x53], Rule::BAD),
        // push %rbp
        at(&[0x55], Rule::BAD),
        // mov %rsp,%rbp
        at(&[0x48, 0x8b, 0xec], Rule::BAD),
        // sub $0x80,%rsp
        at(&[0x48, 0x81, 0xec, 0x80, 0x00, 0x00, 0x00], Rule::BAD),
        // mov 0x3d0(%r15),%rbx
        at(&[0x49, 0x8b, 0x9f, 0xd0, 0x03, 0x00, 0x00], Rule::BAD),
        // mov %rbx,0x8(%rbp)
        at(&[0x48, 0x89, 0x5d, 0x08], Rule::BAD),
        // call 1000000
        at(&[0xe8, 0xda, 0xff, 0xff, 0x00], saved(polled(0x90))),
        // add $0x1,%rbx
        at(&[0x48, 0x83, 0xc3, 0x01], saved(polled(0x90))),
        // mov %rbx,0x8(%rbp)
        at(&[0x48, 0x89, 0x5d, 0x08], saved(polled(0x90))),
        // add $0x80,%rsp
        at(&[0x48, 0x81, 0xc4, 0x80, 0x00, 0x00, 0x00], saved(polled(0x90))),
        // pop %rbp
        at(&[0x5d], saved(polled(16))),
        // ret
        at(&[0xc3], polled(8)),
    ];
    check(GeneratedCode { frame_words: 18, ..plain(GeneratedKind::Poll) }, &code);
}

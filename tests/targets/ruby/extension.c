// A library of Ruby's in C, whose start works for ever, and calls code of Ruby's.

unsigned long rb_eval_string(const char *code);

// Called by the library's start alone.
__attribute__((noinline)) unsigned long x_works(unsigned long count) {
    for (unsigned long turn = 0; turn < 200000; turn++)
        __asm__ volatile("" : "+r"(count));
    return count;
}

void Init_extension(void) {
    for (;;) {
        x_works(3);
        rb_eval_string("x_called");
    }
}

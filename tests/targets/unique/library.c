/* The library of stacks.c: each call goes through a procedure linkage table, calls within the
 * library included. */
#define KEEP(x) __asm__ volatile("" : "+r"(x)::"memory")

unsigned middle_library(unsigned (*leaf)(unsigned), unsigned x);

__attribute__((noipa)) unsigned middle_library(unsigned (*leaf)(unsigned), unsigned x) {
    x = leaf(x) + leaf(x + 1);
    KEEP(x);
    return x;
}

__attribute__((noipa)) unsigned parent_library(unsigned (*leaf)(unsigned), unsigned x) {
    x = middle_library(leaf, x) + middle_library(leaf, x + 1);
    KEEP(x);
    return x;
}

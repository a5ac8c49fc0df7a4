// Exceptions, virtual calls and destructors: every function has one caller, as in stacks.c.
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <sys/prctl.h>

#define ALONE __attribute__((noipa, noinline))
#define KEEP(x) __asm__ volatile("" : "+r"(x)::"memory")
static const int rounds = 20;
static volatile sig_atomic_t stop;

// Thrown by the leaf, through a frame with a destructor, caught by the root.
struct Guard {
    unsigned &count;
    ~Guard() { count++; }
};
ALONE static unsigned leaf_thrown(unsigned x) {
    KEEP(x);
    if (x & 1)
        throw std::runtime_error("odd");
    return x + 1;
}
ALONE static unsigned parent_thrown(unsigned x, unsigned &count) {
    Guard guard{count};
    x = leaf_thrown(x);
    KEEP(x);
    return x;
}
ALONE static unsigned root_thrown(unsigned x) {
    unsigned count = 0;
    for (int round = 0; round < rounds; round++) {
        try {
            x += parent_thrown(x, count);
        } catch (const std::exception &) {
            x += 3;
        }
    }
    return x + count;
}

// Called from the destructor while an exception propagates.
ALONE static unsigned leaf_landed(unsigned x) { KEEP(x); return x * 3; }
struct Works {
    unsigned x;
    ALONE ~Works();
};
static volatile unsigned landed;
Works::~Works() {
    for (int round = 0; round < 50 * rounds; round++)
        landed = landed + leaf_landed(x);
}
ALONE static void parent_landing(unsigned x) {
    Works works{x};
    KEEP(x);
    throw x;
}
ALONE static unsigned root_landing(unsigned x) {
    for (int round = 0; round < rounds; round++) {
        try {
            parent_landing(x);
        } catch (unsigned caught) {
            x += caught;
        }
    }
    return x;
}

// Through a virtual function table.
struct Base {
    virtual unsigned leaf_virtual(unsigned x) = 0;
    virtual ~Base() = default;
};
struct Derived : Base {
    ALONE unsigned leaf_virtual(unsigned x) override { KEEP(x); return x + 5; }
};
static Base *volatile object;
ALONE static unsigned parent_virtual(unsigned x) {
    x = object->leaf_virtual(x) + object->leaf_virtual(x + 1);
    KEEP(x);
    return x;
}
ALONE static unsigned root_virtual(unsigned x) {
    for (int round = 0; round < 10 * rounds; round++)
        x += parent_virtual(x);
    return x;
}

int main() {
    volatile unsigned x = 1;
    object = new Derived;
    signal(SIGTERM, [](int) { stop = 1; });
    // Where yama lets only parents trace, a test's recorder is only a sibling.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    puts("ready");
    fflush(stdout);
    while (!stop)
        x = x + root_thrown(x) + root_landing(x) + root_virtual(x);
    return 17;
}

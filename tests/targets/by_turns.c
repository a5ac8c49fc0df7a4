/* Sleeps alternately below two functions whose frames are at the same address, after calls of
 * both that have left their return addresses further down. */
#include "target.h"

static volatile int sink;

APART static int nap(void) {
    struct timespec time = {.tv_nsec = 3000000};
    return nanosleep(&time, NULL) + 1;
}
#define TURN(name)                                                                                 \
    APART static int name(int deep) {                                                              \
        int got = deep ? name(deep - 1) : nap();                                                   \
        sink = got;                                                                                \
        return got + 1;                                                                            \
    }
TURN(by_one)
TURN(by_other)

int main(void) {
    target_ready();
    for (unsigned turn = 0; !stop; turn++)
        sink = turn % 2 ? by_one(turn / 2 % 3) : by_other(turn / 2 % 3);
    return OWN_EXIT_CODE;
}

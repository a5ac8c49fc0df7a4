/* Sleeps in a function whose frame has a variable size: its caller can be found with the frame
 * pointer only, which the kernel does not show. */
#include "target.h"
#include <alloca.h>

APART static int sleeps(size_t room) {
    char *frame = alloca(room);
    memset(frame, 1, room);
    while (!stop)
        pause();
    return frame[room / 2];
}

int main(int argc, char **argv) {
    (void)argv;
    target_ready();
    return sleeps((size_t)argc * 64) == 1 ? OWN_EXIT_CODE : 1;
}

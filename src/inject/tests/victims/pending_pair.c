// Handles signals 50 and 51. On SIGUSR1 it blocks both, raises both and unblocks both, so that the
// second is delivered as soon as the handler of the first permits it. The second handler stays
// until SIGUSR2.
#include <signal.h>
#include <unistd.h>
static volatile sig_atomic_t done, go, leave, first;
static void on(int s) {
    if (s == SIGTERM) done = 1;
    if (s == SIGUSR1) go = 1;
    if (s == SIGUSR2) leave = 1;
}
static void on_first(int s) { first++; }
static void on_second(int s) {
    write(1, "in\n", 3);
    while (!leave) usleep(1000);
}
int main(void) {
    sigset_t both, before;
    signal(SIGTERM, on); signal(SIGUSR1, on); signal(SIGUSR2, on);
    signal(50, on_first); signal(51, on_second);
    sigemptyset(&both); sigaddset(&both, 50); sigaddset(&both, 51);
    write(1, "ready\n", 6);
    while (!done) {
        if (go) {
            go = 0;
            sigprocmask(SIG_BLOCK, &both, &before);
            raise(50);
            raise(51);
            sigprocmask(SIG_SETMASK, &before, 0);
            write(1, first == 1 ? "out\n" : "lost\n", first == 1 ? 4 : 5);
        }
        usleep(1000);
    }
    return 7;
}

// Prints that it runs, and exits with the code that its argument names.
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    write(1, "ready\n", 6);
    usleep(300000);
    return argc > 1 ? atoi(argv[1]) : 0;
}

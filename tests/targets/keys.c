// Takes the first keys of thread-specific data before the program can.
#include <pthread.h>

__attribute__((constructor)) static void take(void)
{
    pthread_key_t key;
    for (int number = 0; number < 75; number++)
        pthread_key_create(&key, 0);
}

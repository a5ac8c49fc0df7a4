// Native functions that call back.
typedef void (*called_t)(void);

__attribute__((noinline)) void nest_a(called_t called)
{
    called();
    __asm__ volatile("");
}

__attribute__((noinline)) void nest_b(called_t called)
{
    called();
    __asm__ volatile("");
}

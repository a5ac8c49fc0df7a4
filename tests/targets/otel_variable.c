/* The variable of OpenTelemetry's thread contexts, in the program or in a library, and its
 * address. With LARGE it is beside another variable, for which a loader has no room at a fixed
 * distance from the thread pointer. */
struct record;

#ifdef LARGE
__thread char otel_large[1 << 16];
#endif

__attribute__((visibility("default"))) __thread struct record *otel_thread_ctx_v1;

__attribute__((visibility("default"))) struct record **otel_variable(void);

struct record **otel_variable(void) { return &otel_thread_ctx_v1; }

// Runs a script with LuaJIT in two threads, each with a state of its own. The first argument is the
// library, the second one is the script. In one thread, a function of Lua calls native code that
// resumes a coroutine; in the other one, native code resumes the function that the script returns.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct lua_State lua_State;

static const char *script;
static lua_State *(*new_state)(void);
static void (*open_libraries)(lua_State *);
static int (*load_file)(lua_State *, const char *);
static int (*protected_call)(lua_State *, int, int, int);
static lua_State *(*new_thread)(lua_State *);
static lua_State *(*to_thread)(lua_State *, int);
static int (*resume)(lua_State *, int);
static void (*push_value)(lua_State *, int);
static void (*move)(lua_State *, lua_State *, int);
static void (*push_function)(lua_State *, int (*)(lua_State *), int);
static void (*set_field)(lua_State *, int, const char *);

enum { YIELD = 1, GLOBALS = -10002 };

static int host_resume(lua_State *state)
{
    if (resume(to_thread(state, 1), 0) != YIELD)
        exit(2);
    return 0;
}

static lua_State *loaded(int (*function)(lua_State *))
{
    lua_State *state = new_state();
    open_libraries(state);
    if (function) {
        push_function(state, function, 0);
        set_field(state, GLOBALS, "host_resume");
    }
    if (load_file(state, script))
        exit(3);
    return state;
}

static void *nested(void *unused)
{
    protected_call(loaded(host_resume), 0, 0, 0);
    exit(4);
    return unused;
}

static void *direct(void *unused)
{
    lua_State *state = loaded(NULL);
    if (protected_call(state, 0, 1, 0))
        exit(5);
    lua_State *coroutine = new_thread(state);
    push_value(state, -2);
    move(state, coroutine, 1);
    while (resume(coroutine, 0) == YIELD)
        ;
    exit(6);
    return unused;
}

int main(int argc, char **argv)
{
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc == 3 ? dlerror() : "two arguments, please");
        return 1;
    }
    script = argv[2];
    new_state = dlsym(library, "luaL_newstate");
    open_libraries = dlsym(library, "luaL_openlibs");
    load_file = dlsym(library, "luaL_loadfile");
    protected_call = dlsym(library, "lua_pcall");
    new_thread = dlsym(library, "lua_newthread");
    to_thread = dlsym(library, "lua_tothread");
    resume = dlsym(library, "lua_resume");
    push_value = dlsym(library, "lua_pushvalue");
    move = dlsym(library, "lua_xmove");
    push_function = dlsym(library, "lua_pushcclosure");
    set_field = dlsym(library, "lua_setfield");
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, nested, NULL);
    pthread_create(&threads[1], NULL, direct, NULL);
    puts("ready");
    fflush(stdout);
    pthread_join(threads[0], NULL);
    return 0;
}

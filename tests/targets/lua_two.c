// Runs a script with two builds of LuaJIT in one thread. The arguments are their libraries and the
// script. A function in the first one calls what the script returns in the second one.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct lua_State lua_State;

enum { GLOBALS = -10002 };

struct build {
    lua_State *state;
    int (*protected_call)(lua_State *, int, int, int);
    void (*push_value)(lua_State *, int);
};

static struct build other;

static int host_other(lua_State *state)
{
    (void)state;
    other.push_value(other.state, -1);
    if (other.protected_call(other.state, 0, 0, 0))
        exit(2);
    return 0;
}

// Loads the script in a new state of a library.
static struct build loaded(const char *path, const char *script, int (*function)(lua_State *))
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    struct build build;
    lua_State *(*new_state)(void) = dlsym(library, "luaL_newstate");
    void (*open_libraries)(lua_State *) = dlsym(library, "luaL_openlibs");
    int (*load_file)(lua_State *, const char *) = dlsym(library, "luaL_loadfile");
    void (*push_function)(lua_State *, int (*)(lua_State *), int) =
        dlsym(library, "lua_pushcclosure");
    void (*set_field)(lua_State *, int, const char *) = dlsym(library, "lua_setfield");
    build.protected_call = dlsym(library, "lua_pcall");
    build.push_value = dlsym(library, "lua_pushvalue");
    build.state = new_state();
    open_libraries(build.state);
    if (function) {
        push_function(build.state, function, 0);
        set_field(build.state, GLOBALS, "host_other");
    }
    if (load_file(build.state, script))
        exit(3);
    return build;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 1;
    other = loaded(argv[2], argv[3], NULL);
    if (other.protected_call(other.state, 0, 1, 0))
        return 4;
    struct build first = loaded(argv[1], argv[3], host_other);
    puts("ready");
    fflush(stdout);
    first.protected_call(first.state, 0, 0, 0);
    return 5;
}

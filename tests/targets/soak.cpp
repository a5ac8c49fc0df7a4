// One thread for each kind of storm, each of which checks what it does, until SIGTERM.
//
//     soak PLUGIN
#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static std::atomic<bool> ending;
static std::atomic<unsigned long> sent, arrived;
static const char *plugin, *self;
static thread_local sigjmp_buf home;

static __attribute__((noipa)) unsigned long compute(unsigned long x) {
    for (int i = 0; i < 5000; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

struct Guard {
    int &count;
    explicit Guard(int &of) : count(of) { count++; }
    ~Guard() { count--; }
};

static __attribute__((noipa)) int throws(int depth, int &open) {
    Guard guard(open);
    if (depth == 0)
        throw std::runtime_error("at the bottom");
    return throws(depth - 1, open) + 1;
}

static bool exceptions() {
    int open = 0;
    try {
        throws(20, open);
        return false;
    } catch (const std::runtime_error &error) {
        return open == 0 && !strcmp(error.what(), "at the bottom");
    }
}

static bool libraries() {
    void *library = dlopen(plugin, RTLD_NOW);
    bool is_right = library && dlsym(library, "plugin_work");
    return is_right && dlclose(library) == 0;
}

static bool ends_with(pid_t child, int code) {
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == code;
}

static bool forks() {
    unsigned long right = compute(1);
    pid_t child = fork();
    if (child == 0)
        _exit(compute(1) == right ? 9 : 1);
    return ends_with(child, 9);
}

static bool executions() {
    pid_t child = vfork();
    if (child == 0) {
        execl(self, self, static_cast<char *>(nullptr));
        _exit(1);
    }
    return ends_with(child, 8);
}

static bool threads() {
    unsigned long results[4] = {}, right = compute(2);
    std::vector<std::thread> all;
    for (unsigned long &result : results)
        all.emplace_back([&result] { result = compute(2); });
    for (std::thread &one : all)
        one.join();
    for (unsigned long result : results)
        if (result != right)
            return false;
    return true;
}

static bool memory() {
    std::vector<std::string> kept;
    for (int i = 0; i < 200; i++)
        kept.emplace_back(static_cast<size_t>(i * 97 % 5000 + 1), static_cast<char>('a' + i % 26));
    for (int i = 0; i < 200; i++)
        if (kept[static_cast<size_t>(i)].back() != 'a' + i % 26)
            return false;
    // Large enough for its own mapping.
    char *large = static_cast<char *>(malloc(1 << 20));
    large[4096] = 1;
    bool is_right = large[4096] == 1;
    free(large);
    return is_right;
}

static void on_signal(int, siginfo_t *siginfo, void *) {
    if (siginfo->si_code == SI_QUEUE && siginfo->si_value.sival_int == 77)
        arrived++;
}

static bool signals() {
    sigval value;
    value.sival_int = 77;
    for (int signal : {SIGUSR1, SIGRTMIN + 3})
        sent += pthread_sigqueue(pthread_self(), signal, value) == 0;
    return sent == arrived;
}

static void on_fault(int) { siglongjmp(home, 3); }

// Called through a pointer, so that the compiler does not know that it never returns.
static void (*volatile leave)(jmp_buf, int) = longjmp;

static __attribute__((noinline)) void jumps_back(jmp_buf &to, int depth) {
    if (depth > 0)
        jumps_back(to, depth - 1);
    leave(to, 5);
}

static bool jumps() {
    jmp_buf here;
    volatile int passed = 0;
    switch (setjmp(here)) {
    case 0:
        jumps_back(here, 10);
        return false;
    case 5:
        passed = 1;
    }
    int how = sigsetjmp(home, 1);
    if (how == 0) {
        raise(SIGFPE);
        return false;
    }
    return how == 3 && passed == 1;
}

static bool computing() { return compute(3) == compute(3); }

struct Storm {
    const char *name;
    bool (*once)();
    unsigned long done = 0, wrong = 0;
};
static Storm storms[] = {{"exceptions", exceptions}, {"libraries", libraries}, {"forks", forks},
                         {"executions", executions}, {"threads", threads},     {"memory", memory},
                         {"signals", signals},       {"jumps", jumps},         {"computing", computing}};

static void handle(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(signal, &action, nullptr);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 8;
    self = argv[0];
    plugin = argv[1];
    handle(SIGUSR1, on_signal);
    handle(SIGRTMIN + 3, on_signal);
    signal(SIGFPE, on_fault);
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, nullptr);
    std::vector<std::thread> all;
    for (Storm &storm : storms)
        all.emplace_back([&storm] {
            pthread_setname_np(pthread_self(), storm.name);
            while (!ending) {
                storm.wrong += !storm.once();
                storm.done++;
            }
        });
    // Where yama lets only parents trace, a test's recorder is only a sibling.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    puts("ready");
    fflush(stdout);
    int got = 0;
    while (sigwait(&term, &got) != 0 || got != SIGTERM)
        ;
    ending = true;
    for (std::thread &one : all)
        one.join();
    for (const Storm &storm : storms)
        printf("done_%s %lu\nwrong_%s %lu\n", storm.name, storm.done, storm.name, storm.wrong);
    return 17;
}

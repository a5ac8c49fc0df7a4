"""Forks in a thread, again and again, and has workers of multiprocessing of both kinds. Until SIGTERM.

`child_1` runs only in forked children, called by `child_0`; `spawned_1` only in started ones.
"""
import multiprocessing
import os
import signal
import threading
import time


def child_1(n):
    for i in range(n):
        n = n * i % 97 + 1
    return n


def child_0():
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        child_1(2000)
    os._exit(0)


def forking_0():
    while True:
        pid = os.fork()
        if pid == 0:
            child_0()
        os.waitpid(pid, 0)


def parent_1(n):
    for i in range(n):
        n = n * i % 101 + 1
    return n


def parent_0():
    while True:
        parent_1(2000)
        time.sleep(0.001)


def forked_1(n):
    for i in range(n):
        n = n * i % 103 + 1
    return n


def forked_0():
    while True:
        forked_1(2000)


def spawned_1(n):
    for i in range(n):
        n = n * i % 107 + 1
    return n


def spawned_0():
    while True:
        spawned_1(2000)


def end(*_):
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(17)


def main():
    print("ready", flush=True)
    for kind, function in (("fork", forked_0), ("spawn", spawned_0)):
        multiprocessing.get_context(kind).Process(target=function, daemon=True).start()
    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=forking_0, daemon=True, name="forking").start()
    parent_0()


if __name__ == "__main__":
    main()

"""Processes that `multiprocessing` spawns. One of them works at a time, for a while. Until
SIGTERM."""
import multiprocessing
import os
import signal


def work(n):
    total = 0
    for i in range(400000):
        total += i * n % 7
    return total


def other_work(n):
    return sum(sorted(k * n % 1009 for k in range(200000)))


def end(*_):
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(17)


if __name__ == "__main__":
    pool = multiprocessing.get_context("spawn").Pool(2)
    signal.signal(signal.SIGTERM, end)
    for n in range(4):
        pool.apply(work, (n,))
    print("ready", flush=True)
    while True:
        for n in range(20):
            pool.apply(work, (n,))
            pool.apply(other_work, (n,))

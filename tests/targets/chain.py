# One chain of calls until SIGTERM.
import os
import signal


def leaf_chain(n):
    total = 0
    for i in range(200):
        total += i * n
    return total


def parent_chain(n):
    return leaf_chain(n) + 1


def root_chain():
    for i in range(1000):
        parent_chain(i)


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
print("ready", flush=True)
while True:
    root_chain()

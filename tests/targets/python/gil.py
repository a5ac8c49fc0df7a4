"""Threads that hold the GIL, release it, wait for it, or sleep with it, until SIGTERM.

For each thread it prints its name and native id. With the argument `contended`, two threads compute
in Python and so wait for each other.
"""
import os
import signal
import sys
import threading
import time
import zlib


def spin(n):
    total = 0
    for i in range(n):
        total = (total * 31 + i) % 1009
    return total


def computes():
    while True:
        spin(10000)


# It is made smaller by far: zlib copies the result while it holds the GIL.
data = os.urandom(1 << 10) * (1 << 15)


# Calls that do not need the interpreter while they compress.
def packs():
    while True:
        zlib.compress(data, 6)


def sleeps():
    while True:
        time.sleep(0.3)


# The functions of such a library are called with the GIL.
def naps(library):
    while True:
        library.usleep(30000)
        time.sleep(0.07)


works = {"packs": packs, "sleeps": sleeps, "computes": computes}
if "contended" in sys.argv:
    works["computes-too"] = computes
else:
    try:
        import ctypes

        library = ctypes.PyDLL(None)
        works["naps"] = lambda: naps(library)
        library.prctl(0x59616D61, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
    except (ImportError, OSError):
        pass
signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
threads = [threading.Thread(target=work, name=name, daemon=True) for name, work in works.items()]
for thread in threads:
    thread.start()
for thread in threads:
    print(thread.name, thread.native_id, flush=True)
print("ready", flush=True)
while True:
    time.sleep(100)

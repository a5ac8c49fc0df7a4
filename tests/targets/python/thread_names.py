"""Threads with names of many kinds, and threads without any, until SIGTERM.

Prints `names JSON`: the name of each thread that has one, by its native id; and `nameless JSON`: the
native ids of the threads without a name. One thread gets its name after a while.
"""
import _thread
import concurrent.futures
import json
import os
import signal
import sys
import threading
import time

nameless = []
reused = 0


def works():
    while True:
        sum(range(2000))
        time.sleep(0.05)


class Slotted(threading.Thread):
    __slots__ = ("one", "other")


class Many(threading.Thread):
    def __init__(self, **options):
        super().__init__(**options)
        # More attributes than a class has room for.
        for number in range(60):
            setattr(self, "attribute_%d" % number, number)


class Reordered(threading.Thread):
    def __init__(self, **options):
        self.first = 1
        super().__init__(**options)
        self.last = 2


def late():
    time.sleep(0.5)
    threading.current_thread().name = "renamed-when-it-ran"
    works()


def foreign():
    nameless.append(threading.get_native_id())
    works()


def stale(ended):
    # Up to 3.12, this leaves an object for the thread behind.
    threading.current_thread()
    ended.append(threading.get_ident())


def start(make, name, target=works):
    thread = make(name=name, target=target, daemon=True)
    thread.start()
    return thread


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
threads = [start(threading.Thread, "worker-%d" % number) for number in range(100)]
threads += [start(threading.Thread, name) for name in ("größe", "поток с именем", "\U0001d518 wide")]
threads += [start(threading.Thread, "a name that is far longer than the kernel has room for" * 2)]
threads += [start(make, make.__name__.lower()) for make in (Slotted, Many, Reordered)]
seen = start(threading.Thread, "seen")
# The attributes are a dictionary from now on.
seen.__dict__["more"] = 1
last = start(threading.Thread, "late", late)
pool = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="pool")
for _ in range(2):
    pool.submit(works)
# Threads that take the thread pointers of threads that have ended.
for _ in range(10):
    ended = []
    _thread.start_new_thread(stale, (ended,))
    while not ended:
        time.sleep(0.01)
    time.sleep(0.05)
    before = len(nameless)
    _thread.start_new_thread(foreign, ())
    while len(nameless) == before:
        time.sleep(0.01)
time.sleep(0.8)
# Objects of threads without a name of their own remain, and may be those of ended ones.
names = {thread.native_id: thread.name for thread in threading.enumerate()
         if not isinstance(thread, threading._DummyThread)}
print("nameless", json.dumps(nameless))
print("reused", sum(ident in threading._active for ident in sys._current_frames()) - len(names))
print("names", json.dumps({str(tid): name for tid, name in names.items()}))
print("ready", flush=True)
while True:
    time.sleep(100)

"""Threads in zlib and hashlib, which run without the interpreter's lock, and in json and re. They
take turns, long ones, so that none waits for a processor on which another one runs. Until
SIGTERM."""
import hashlib
import json
import os
import re
import signal
import threading
import time
import zlib

TURN = 0.05
DATA = bytes(range(256)) * 1000
ROWS = [{"key%d" % i: i, "text": "abc def " * 10} for i in range(200)]
TEXT = json.dumps(ROWS)


def compress():
    return zlib.compress(DATA, 3)


def digest():
    return [hashlib.sha256(DATA).digest() for _ in range(8)]


def read_and_write():
    return json.dumps(json.loads(TEXT))


def search():
    return re.findall(r"(\w+)\s+(\w+)", TEXT)


def forever(function, own, following):
    while True:
        own.acquire()
        end = time.monotonic() + TURN
        while time.monotonic() < end:
            function()
        following.release()


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
functions = (compress, digest, read_and_write, search)
turns = [threading.Semaphore(0) for _ in functions]
for at, function in enumerate(functions):
    name, following = "does-" + function.__name__[:8], turns[(at + 1) % len(turns)]
    arguments = (function, turns[at], following)
    threading.Thread(target=forever, args=arguments, name=name, daemon=True).start()
turns[0].release()
print("ready", flush=True)
threading.Event().wait()

"""Ends by itself after some work, with threads that go on and objects that run code until the last
moment.

  finalize.py MILLISECONDS
"""
import atexit
import sys
import threading
import time


def busy_1(n):
    for i in range(n):
        n = n * i % 97 + 1
    return n


def busy_0():
    while True:
        busy_1(500)


class Late:
    """Runs code when the interpreter deletes it."""

    def __init__(self, busy):
        self.busy = busy
        self.itself = self

    def __del__(self):
        self.busy(2000)


@atexit.register
def at_exit():
    busy_1(200000)


kept = [Late(busy_1) for _ in range(100)]
for number in range(4):
    threading.Thread(target=busy_0, daemon=True, name="busy-%d" % number).start()
print("ready", flush=True)
end = time.monotonic() + int(sys.argv[1]) / 1000
while time.monotonic() < end:
    busy_1(5000)
sys.exit(17)

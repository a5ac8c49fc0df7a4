"""A thread that sleeps in two functions by turns, through the same native frames, until SIGTERM."""
import os
import signal
import threading
import time


def long_nap():
    time.sleep(0.24)


def short_nap():
    time.sleep(0.08)


def turns():
    while True:
        for nap in (long_nap, short_nap):
            nap()


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
thread = threading.Thread(target=turns, daemon=True)
thread.start()
print("turner", thread.native_id)
print("ready", flush=True)
while True:
    time.sleep(3600)

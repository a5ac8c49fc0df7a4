"""Threads that hold still in chains of calls, with their own account of the stacks.

Prints `frames JSON`: for each thread id a list of [function, file, line], innermost first.
"""
import asyncio
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time

never = threading.Lock()
never.acquire()
reader, _writer = os.pipe()
ends = []


def on_lock():
    never.acquire()


class Sleeper:
    def __init__(self, action):
        self.action = action
        self.sleep()

    def sleep(self):
        self.action(3600)


def in_constructor():
    Sleeper(time.sleep)


def numbers():
    yield 1
    queue.Queue().get()
    yield 2


def in_generator():
    return sum(number * 2 for number in numbers())


def in_comprehension():
    return [os.read(number, 1) for number in [reader]]


def in_callback():
    # C code between Python frames.
    return sorted([3, 2, 1], key=lambda number: re.sub("a", lambda _: on_lock(), "abc"))


def recursive(depth):
    if depth == 0:
        return in_callback()
    return recursive(depth - 1)


def on_recursion():
    recursive(60)


async def awaited(depth):
    if depth:
        await awaited(depth - 1)
    else:
        time.sleep(3600)


def in_coroutine():
    asyncio.new_event_loop().run_until_complete(awaited(3))


def in_event_loop():
    asyncio.new_event_loop().run_forever()


def on_accept():
    with socket.socket() as listener:
        listener.listen()
        listener.accept()


def on_receive():
    ends.extend(socket.socketpair())
    ends[0].recv(1)


def on_child():
    # It ends with this process, whose end of the pipe it reads.
    subprocess.Popen(["cat"], stdin=subprocess.PIPE).wait()


def on_event():
    threading.Event().wait()


def in_exec():
    exec(compile("def made():\n\n    never.acquire()\nmade()", "made \u00e9 file", "exec"), globals())


def decorated(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorated
def in_decorator():
    try:
        raise ValueError
    except ValueError:
        with never:
            pass


ACTIONS = [
    on_lock,
    in_constructor,
    in_generator,
    in_comprehension,
    on_recursion,
    in_coroutine,
    in_event_loop,
    on_accept,
    on_receive,
    on_child,
    on_event,
    in_exec,
    in_decorator,
]


def named(frame, line):
    code = frame.f_code
    return [getattr(code, "co_qualname", code.co_name), code.co_filename, line]


def account(frame):
    frames = []
    while frame:
        frames.append(named(frame, frame.f_lineno))
        frame = frame.f_back
    return frames


def all_accounts(threads):
    frames = sys._current_frames()
    return {thread.native_id: account(frames[thread.ident]) for thread in threads}


def main():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
    threads = [threading.Thread(target=action, daemon=True) for action in ACTIONS]
    for thread in threads:
        thread.start()
    last = None
    while True:
        time.sleep(0.2)
        found = all_accounts(threads)
        if found == last:
            break
        last = found
    own = account(sys._getframe())
    own[0][2] = sys._getframe().f_lineno + 4
    found[threading.get_native_id()] = own
    print("frames", json.dumps(found))
    print("ready", flush=True)
    time.sleep(3600)


main()

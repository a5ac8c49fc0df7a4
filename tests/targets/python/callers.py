"""Calls of many kinds, in which every function has one caller. Until SIGTERM.

The functions of a kind are numbered from 0, and tests/python/callers.rs has the caller of each. All
work is in loops, so that a leaf is what the program wrote and not what it calls. Runs on Python 3.8
and later. Kinds whose library is missing are left out, and the line of kinds tells so.
"""
import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import sys
import threading
import time

kinds = []

def kind(function):
    kinds.append(function)
    return function

@kind
def plain_0(n):
    for i in range(n):
        plain_1(i, n)

def plain_1(i, n):
    total = 0
    for k in range(n): total += plain_2(k, scale=i)
    return total

def plain_2(k, *, scale=1):
    total = k
    for j in range(20):
        total = (total * 31 + j * scale) % 1009
    return total + plain_3(*(k,), **{"more": scale})

def plain_3(k, more):
    while k > 0:
        k -= 1 + more % 3
    return k

@kind
def deep_0(n):
    for _ in range(n // 2):
        deep_1(3 * n)

def deep_1(depth):
    total = 0
    for i in range(10): total += i ^ depth
    return total if depth == 0 else total + deep_1(depth - 1)

class Method:
    def method_1(self, n):
        total = 0
        for i in range(n): total += self.method_2(i) + self.method_3(i) + self.method_4
        return total

    @staticmethod
    def method_2(n):
        for i in range(30): n = n * i % 97
        return n

    @classmethod
    def method_3(cls, n):
        for i in range(30): n = (n + i) % 97
        return n

    @property
    def method_4(self):
        n = 0
        for i in range(30):
            n += i
        return n

@kind
def method_0(n):
    for _ in range(n):
        Method().method_1(n // 2)

class Special:
    def __new__(cls, n):
        special_1(n)
        return super().__new__(cls)

    def __init__(self, n):
        self.n = special_2(n)

    def __add__(self, other):
        return special_3(self.n)

    def __getattr__(self, name):
        return special_4(self.n)

    def __eq__(self, other):
        return special_5(self.n) < 0

    def __call__(self, n):
        return special_6(n)

    def __del__(self):
        special_7(self.n)

def special_1(n):
    for i in range(n): n = n * i % 89 + 1
    return n

def special_2(n):
    for i in range(30): n = n * i % 83 + 1
    return n

def special_3(n):
    for i in range(30): n = n * i % 79 + 1
    return n

def special_4(n):
    for i in range(30): n = n * i % 73 + 1
    return n

def special_5(n):
    for i in range(30): n = n * i % 71 + 1
    return n

def special_6(n):
    for i in range(30): n = n * i % 67 + 1
    return n

def special_7(n):
    for i in range(30): n = n * i % 61 + 1
    return n

@kind
def special_0(n):
    for i in range(n):
        made = Special(n)
        made + made
        made.absent
        [1, 2].count(made)
        made(i)
        # Else the last one would be deleted by the caller.
        del made

@kind
def gen_0(n):
    total = 0
    for _ in range(n // 4):
        for i in gen_1(n):
            total += i
    return total

def gen_1(n):
    yield from gen_2(n)
    for i in range(n):
        yield i

def gen_2(n):
    for i in range(n):
        yield gen_3(i)

def gen_3(n):
    for i in range(20): n = n * i % 59 + 1
    return n

@kind
def expr_0(n):
    return sum(expr_1(i, n) for i in range(n))

def expr_1(i, n):
    for k in range(n): i = i * k % 53 + 1
    return i

# Comprehensions, which have frames of their own up to 3.11.
@kind
def comp_0(n):
    for _ in range(n // 4):
        comp_1(n)

def comp_1(n):
    listed = [comp_2(i) for i in range(n)]
    named = {i: comp_3(i) for i in range(n)}
    known = {comp_4(i) for i in range(n)}
    return len(listed) + len(named) + len(known)

def comp_2(n):
    for i in range(20): n = n * i % 47 + 1
    return n

def comp_3(n):
    for i in range(20): n = n * i % 43 + 1
    return n

def comp_4(n):
    for i in range(20): n = n * i % 41 + 1
    return n

# Functions that are made by functions.
def decorate(function):
    def deco_2(n):
        total = 0
        for i in range(20): total += i
        return total + function(n)

    return deco_2

@decorate
def deco_3(n):
    for i in range(20): n = n * i % 37 + 1
    return n

@kind
def deco_0(n):
    for i in range(n):
        deco_1(i, n)

def deco_1(i, n):
    for k in range(n // 2):
        deco_3(i + k)

@functools.lru_cache(maxsize=1)
def cached_1(n):
    for i in range(n % 7 + 40): n = n * i % 31 + 1
    return cached_2(n)

def cached_2(n, more=1):
    for i in range(20): n = n * i % 29 + more
    return n

@kind
def cached_0(n):
    for i in range(10 * n):
        cached_1(i)
        functools.partial(cached_3, more=i)(i)

def cached_3(n, more):
    for i in range(20): n = n * i % 23 + more
    return n

@kind
def lambda_0(n):
    for i in range(n):
        (lambda k: lambda_1(k, n))(i)

def lambda_1(k, n):
    for i in range(2 * n):
        k = k * i % 19 + 1
    return k

# Functions that C calls.
@kind
def sorted_0(n):
    for _ in range(n // 4):
        sorted(range(n), key=sorted_1)
        min(range(n), key=sorted_3)

def sorted_1(n):
    return -sorted_2(n)

def sorted_2(n):
    for i in range(20): n = n * i % 17 + 1
    return n

def sorted_3(n):
    for i in range(20): n = n * i % 13 + 1
    return n

@kind
def map_0(n):
    for _ in range(n // 4):
        list(map(map_1, range(n)))
        list(filter(map_2, range(n)))
        functools.reduce(map_3, range(n))

def map_1(n):
    for i in range(20): n = n * i % 101 + 1
    return n

def map_2(n):
    for i in range(20): n = n * i % 103 + 1
    return n

def map_3(total, n):
    for i in range(20): n = n * i % 107 + 1
    return total + n

@kind
def resub_0(n):
    for _ in range(n // 4):
        re.sub("[a-e]", resub_1, TEXT)
        PATTERN.sub(resub_2, TEXT)

def resub_1(match):
    n = len(match.group())
    for i in range(20): n = n * i % 109 + 1
    return str(n)

def resub_2(match):
    n = len(match.group())
    for i in range(20): n = n * i % 113 + 1
    return str(n)

TEXT = "some text with letters to replace " * 4
PATTERN = re.compile("[f-t]")

@kind
def json_0(n):
    for _ in range(n // 2):
        json.dumps([object() for _ in range(n)], default=json_1)
        json.loads('[{"a": 1}, {"b": 2}, {"c": {"d": 3}}]', object_hook=json_2)

def json_1(_):
    n = 0
    for i in range(20): n = n * i % 127 + 1
    return n

def json_2(read):
    n = len(read)
    for i in range(20): n = n * i % 131 + 1
    return n

@kind
def async_0(n):
    LOOP.run_until_complete(async_1(n))

async def async_1(n):
    for i in range(n // 2):
        await async_2(i)
        async for k in async_4(i):
            await asyncio.sleep(0)
        for k in range(50): i += k

async def async_2(n):
    await asyncio.sleep(0)
    return async_3(n)

def async_3(n):
    for i in range(50): n = n * i % 137 + 1
    return n

async def async_4(n):
    for i in range(3):
        for k in range(50): n = n * k % 139 + 1
        yield n

LOOP = asyncio.new_event_loop()

@kind
def coro_0(n):
    for _ in range(4 * n):
        made = coro_1(n)
        with contextlib.suppress(StopIteration):
            made.send(None)

async def coro_1(n):
    for i in range(20): n = n * i % 149 + 1
    return await coro_2(n)

async def coro_2(n):
    for i in range(20): n = n * i % 151 + 1
    return n

@contextlib.contextmanager
def context_1(n):
    context_2(n)
    yield n
    context_3(n)

def context_2(n):
    for i in range(30): n = n * i % 157 + 1
    return n

def context_3(n):
    for i in range(30): n = n * i % 163 + 1
    return n

@kind
def context_0(n):
    for i in range(4 * n):
        with context_1(i):
            pass

@kind
def exec_0(n):
    for _ in range(4):
        exec(CODE, GLOBALS)
        eval(EXPRESSION, GLOBALS)
        GLOBALS["exec_3"](n)

def exec_1(n):
    for i in range(500): n = n * i % 167 + 1
    return n

def exec_2(n):
    for i in range(500): n = n * i % 173 + 1
    return n

def exec_4(n):
    for i in range(500): n = n * i % 179 + 1
    return n

CODE = compile("exec_1(1)\ndef exec_3(n):\n  return exec_4(n)\n", "<generated>", "exec")
EXPRESSION = compile("exec_2(1)", "<generated>", "eval")
GLOBALS = {"exec_1": exec_1, "exec_2": exec_2, "exec_4": exec_4}

# Libraries that run without the interpreter's lock.
try:
    import hashlib
    import zlib

    DATA = bytes(range(256)) * 1000

    @kind
    def lib_0(n):
        for _ in range(n // 10):
            lib_1(n)
            lib_2(n)

    def lib_1(n):
        return zlib.crc32(DATA, n) + len(zlib.compress(DATA, 1))

    def lib_2(_):
        return hashlib.sha256(DATA).digest()

except ImportError:
    pass

# A foreign function that calls back.
try:
    import ctypes

    LIBC = ctypes.CDLL(None)
    NUMBERS = ctypes.POINTER(ctypes.c_int)
    ORDER = ctypes.CFUNCTYPE(ctypes.c_int, NUMBERS, NUMBERS)

    @kind
    def ctypes_0(n):
        numbers = (ctypes.c_int * n)(*range(n, 0, -1))
        LIBC.qsort(numbers, n, 4, ORDER(ctypes_1))

    def ctypes_1(one, other):
        return ctypes_2(one[0], other[0])

    def ctypes_2(one, other):
        n = 1
        for i in range(20): n = n * i % 181 + 1
        return one - other

    # PR_SET_PTRACER, any: where yama lets only parents trace, a test's recorder is only a sibling.
    LIBC.prctl(0x59616D61, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
except (ImportError, OSError):
    pass

# Other threads.
def thread_0():
    while True:
        for i in range(40):
            thread_1(i)
        pause.wait(0.01)

def thread_1(n):
    for i in range(20):
        n += thread_2(i)
    return n

def thread_2(n):
    for i in range(20): n = n * i % 191 + 1
    return n

# A handler of signals, which any function may be interrupted by.
def signal_0(_number, _frame):
    signal_1(30)

def signal_1(n):
    for i in range(1500): n = n * i % 193 + 1
    return n

def rounds():
    while True:
        for function in kinds:
            # The same time for each kind, by a clock that needs no system call.
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                function(20)

pause = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
signal.signal(signal.SIGALRM, signal_0)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
for name in ("one", "other"):
    threading.Thread(target=thread_0, name="caller-" + name, daemon=True).start()
names = [function.__name__[:-2] for function in kinds] + ["thread", "signal"]
print("kinds", ",".join(names), flush=True)
print("version", "%d.%d" % sys.version_info[:2], flush=True)
print("ready", flush=True)
rounds()

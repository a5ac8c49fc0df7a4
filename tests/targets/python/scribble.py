"""Overwrites its own interpreter's structures where a profiler reads them, and checks its own work.
Until SIGTERM.

  scribble.py LIBRARY
"""
import ctypes
import signal
import sys

LIBRARY = ctypes.PyDLL(sys.argv[1])
LIBRARY.scribble.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64]
API = ctypes.pythonapi
API.PyThreadState_Get.restype = ctypes.c_uint64
THREAD = API.PyThreadState_Get()
RUNTIME = ctypes.addressof(ctypes.c_char.in_dll(API, "_PyRuntime"))
BUSY_NS = 3_000_000
stop = False


def on_sigterm(_number, _frame):
    global stop
    stop = True


def deep(depth, start, levels):
    if depth:
        return deep(depth - 1, start, levels)
    return LIBRARY.scribble(start, levels, BUSY_NS)


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


signal.signal(signal.SIGTERM, on_sigterm)
# PR_SET_PTRACER, any: where yama lets only parents trace, a test's recorder is only a sibling.
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
print("ready", flush=True)
hits, wrong, code = 0, 0, deep.__code__
while not stop:
    for number, start in enumerate((THREAD, RUNTIME, THREAD + 56, RUNTIME + 8 * (hits % 300), id(code))):
        hits += deep(number * 7 % 40, start, 1 + hits % 6)
    wrong += fibonacci(12) != 144
print("hits", hits)
print("wrong", wrong, flush=True)
sys.exit(17)

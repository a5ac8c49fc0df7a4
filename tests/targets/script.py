"""Busy in the interpreter until SIGTERM; then checks its own arithmetic."""
import ctypes
import signal
import sys

stop = False


def on_sigterm(_number, _frame):
    global stop
    stop = True


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def sort_words():
    words = [str((i * 7919) % 10007) for i in range(2000)]
    return sorted(words)[0]


signal.signal(signal.SIGTERM, on_sigterm)
# PR_SET_PTRACER, any: where yama lets only parents trace, a test's recorder is only a sibling.
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
print("ready", flush=True)
wrong = 0
while not stop:
    wrong += fibonacci(16) != 987
    wrong += sort_words() != "0"
print("wrong", wrong)
sys.exit(17)

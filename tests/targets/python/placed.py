"""Runs Python code around native functions of a library and around another interpreter.

  placed.py LIBRARY SCENARIO

Prints `ready` where it holds still, or before it works without end.
"""
import ctypes
import os
import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

LIBRARY = ctypes.CDLL(sys.argv[1])
CALLED = ctypes.CFUNCTYPE(None)
WITHIN = """
import os

def inner_1():
    {}

def inner_0():
    inner_1()

inner_0()
"""
HOLDS = 'print("ready", flush=True); os.read({}, 1)'
WORKS = 'print("ready", flush=True)\n    while True: sum(range(100))'


def hold(until):
    print("ready", flush=True)
    os.read(until, 1)


class Last:
    def __del__(self):
        called = CALLED(lambda: hold(UNTIL))
        LIBRARY.nest_b(called)


# The native function `nest_a` has called this one, and frees its variables when it returns.
def returns():
    last = Last()
    last.itself = 7


def cleared():
    called = CALLED(returns)
    LIBRARY.nest_a(called)


def outer_1():
    interpreters.run_string(interpreters.create(), WITHIN.format(HOLDS.format(UNTIL)))


def within():
    called = CALLED(outer_1)
    LIBRARY.nest_a(called)


def outer_2():
    interpreters.run_string(interpreters.create(), WITHIN.format(WORKS))


def works():
    called = CALLED(outer_2)
    LIBRARY.nest_a(called)


# The state of an interpreter is that of the thread that has made it, up to 3.12.
def lent():
    lent_to = interpreters.create()
    text = WITHIN.format(HOLDS.format(UNTIL))
    thread = threading.Thread(target=lambda: interpreters.run_string(lent_to, text), daemon=True)
    thread.start()
    os.read(UNTIL, 1)


def makes():
    big = [[number] for number in range(30000)]
    big.append(big[0])


# Python frees the list when the native function's callback has ended.
def frees():
    print("ready", flush=True)
    called = CALLED(makes)
    while True:
        LIBRARY.nest_a(called)


UNTIL, KEPT = os.pipe()
{it.__name__: it for it in [cleared, within, works, lent, frees]}[sys.argv[2]]()

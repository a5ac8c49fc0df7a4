"""Runs the tests of a package that ships them, again and again. Until SIGTERM."""
import os
import signal

from sympy.testing import runtests

signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
print("ready", flush=True)
while True:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    runtests._test("sympy/core/tests/test_expr.py", "sympy/polys/tests/test_densearith.py")

"""Invalid values are dropped and leave no thread in a span, with and without the library: see languages.rs."""

import os

import traceprof_context
from traceprof_context import span, tag

has_library = "TRACEPROF_CONTEXT_LIBRARY" in os.environ
assert traceprof_context.is_available() == has_library


class Hostile(str):
    def __hash__(self):
        raise RuntimeError("a text that cannot be hashed")


def check_span(expected):
    """Checks the thread's span. Without the library there is nothing to check."""
    values = traceprof_context._Values()
    traceprof_context._get(traceprof_context.ctypes.byref(values))
    assert not has_library or values.span == expected, hex(values.span)


for value in (1.5, b"x", [], {}, object(), -1, 1 << 32, 1 << 70, float("nan")):
    assert tag("odd", value) is False, value
    with span(0x1234, 0x99, odd=value):
        check_span(0x1234)
    check_span(0)
for name in (b"name", None, 7, [], 1.5):
    assert tag(name, "x") is False, name
    assert tag(name, None) is False, name
for value in (0, 1, True, False, 0xFFFFFFFF):
    assert tag("number", value) is True, value
for value in ("", "x", "\ud800", "a\ud800b", "x" * 1000, "\U0001f600"):
    assert tag("text", value) is True, value
assert tag("\ud800", "a name that cannot be encoded") is True
traceprof_context.clear()

with span(0x1234, 0x99):
    for make in (
        lambda: span(0x5678, 0x99, text=Hostile("x")),
        lambda: span("0x5678", 0x99),
        lambda: span(0x5678, 1.5),
    ):
        try:
            with make():
                raise AssertionError("nothing was raised")
        except (RuntimeError, TypeError):
            pass
        check_span(0x1234)
    try:
        traceprof_context.set(None, 1)
        raise AssertionError("nothing was raised")
    except TypeError:
        pass
    with span(1 << 64 | 0x77, 0x99):
        check_span(0x77)
check_span(0)
print("well")

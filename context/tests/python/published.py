"""Sets contexts with the module, checks them itself, and waits for the test to read them: see languages.rs."""

import os
import sys
import threading

import traceprof_context

assert traceprof_context.is_available()


def current():
    """Returns what this thread has set, in the module's own structure."""
    values = traceprof_context._Values()
    traceprof_context._get(traceprof_context.ctypes.byref(values))
    return values


def in_a_thread(is_set, is_over):
    assert current().checksum == 0, "the context of another thread"
    traceprof_context.set(0x1235, 0x99)
    print("thread", threading.get_native_id(), flush=True)
    is_set.set()
    is_over.wait()


def lives_and_dies():
    assert current().checksum == 0, "the context of an earlier thread"
    traceprof_context.set(0xDEAD, 0xDEAD)


for _ in range(50):
    thread = threading.Thread(target=lives_and_dies)
    thread.start()
    thread.join()

with traceprof_context.span(0x1234, 0x99, route="/checkout", tenant=42):
    with traceprof_context.span(0x5FB397BE34D26B51, 0x99, tenant=43):
        assert current().span == 0x5FB397BE34D26B51
    assert (current().span, current().root_span) == (0x1234, 0x99)
    assert not traceprof_context.tag("tenant", "a text")
    child = os.fork()
    if child == 0:
        is_clear = current().checksum == 0
        traceprof_context.set(7, 8)
        os._exit(0 if is_clear and current().span == 7 else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child"
    is_set, is_over = threading.Event(), threading.Event()
    other = threading.Thread(target=in_a_thread, args=(is_set, is_over))
    other.start()
    is_set.wait()
    print("main", threading.get_native_id(), flush=True)
    print("ready", flush=True)
    sys.stdin.readline()
    is_over.set()
    other.join()
assert current().checksum == 0
print("well")

"""Threads that publish spans with traceprof_context.py. Each writes its spans to the log, the only
argument, before it sets them. Until SIGTERM.
"""
import os
import random
import signal
import sys
import threading
import time

import traceprof_context

ROUTES = ["/checkout", "/cart", "/search"]
log = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
stop = threading.Event()
rounds = []


def announce(root, function, route, tenant):
    """Returns the id of a new span, which the log has by then. Root 0 means the span itself."""
    span = random.getrandbits(64) | 1
    line = "%x %x %d %s %s %d\n" % (
        span, root or span, threading.get_native_id(), function, route, tenant)
    os.write(log, line.encode())
    return span


def burn(ms):
    until = time.monotonic() + ms / 1000
    x = 1
    while time.monotonic() < until:
        for _ in range(200):
            x = (x * 31 + 7) % 1000003
    return x


def in_none():
    burn(5)


def in_query():
    burn(8)


def in_request(root, tenant):
    burn(8)
    query(root, tenant)
    burn(8)


def query(root, tenant):
    """A span within the span of a request. It keeps the tenant."""
    span = announce(root, "in_query", "/query", tenant)
    with traceprof_context.span(span, root, route="/query"):
        in_query()


def request(number):
    route, tenant = ROUTES[number % len(ROUTES)], 1 + number % 50
    span = announce(0, "in_request", route, tenant)
    with traceprof_context.span(span, span, route=route, tenant=tenant):
        in_request(span, tenant)


def serve():
    number = 0
    while not stop.is_set():
        request(number)
        in_none()
        number += 1
        rounds.append(number)


signal.signal(signal.SIGTERM, lambda *_: stop.set())
threads = [threading.Thread(target=serve) for _ in range(2)]
for thread in threads:
    thread.start()
while len(rounds) < 4:
    time.sleep(0.005)
print("ready", flush=True)
while not stop.wait(0.1):
    pass
for thread in threads:
    thread.join()
sys.exit(17 if traceprof_context.is_available() else 1)

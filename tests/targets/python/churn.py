"""Makes, calls and drops functions, as a server that generates code for each request. Until SIGTERM.

`inner_N` is called by `made_N` and by no other function. Each lives for about a millisecond. Its
memory is used again for the next ones, which have the same size.
"""
import os
import signal

SOURCE = """def inner_{0}(n):
    for i in range(6000):
        n = n * i % 97 + 1
    return n


def made_{0}(n):
    return inner_{0}(n) + 1
"""


def serve(number):
    made = {}
    exec(SOURCE.format(number), made)
    made["made_" + number](1)


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
print("ready", flush=True)
requests = 0
while True:
    requests += 1
    serve("%06d" % (requests % 10**6))

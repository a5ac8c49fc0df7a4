"""Running threads whose functions have one caller each: `n_0_2_1` is called by `n_0_2` only.

Between two of them may be functions in C, and frames without a name of that form.
"""
import functools
import os
import signal
import threading
import zlib

THREADS, DEPTH, CHILDREN = 4, 6, 2
CALLS = [
    "{child}(x)",
    "sum(map({child}, [x]))",
    "sorted([x], key={child})[0]",
    "sum({child}(y) for y in [x])",
    "functools.partial({child}, x)()",
    "max([{child}(y) for y in (x, x + 1)])",
    "functools.reduce(lambda a, b: {child}(a + b), [x, 1])",
]
LEAVES = [
    "    for _ in range(90):\n        x = x * 3 % 1000003\n    return x\n",
    "    return zlib.crc32(b'0123456789' * 500, x & 1023)\n",
    "    return len(str(x) * 3) + hash((x, x + 1))\n",
]


def source(name, depth, kind):
    """Returns the text of a function, and of all that it calls."""
    if depth == 0:
        return f"def {name}(x):\n" + LEAVES[kind % len(LEAVES)]
    text, body = "", f"def {name}(x):\n    result = 0\n"
    for number in range(CHILDREN):
        child = f"{name}_{number}"
        text += source(child, depth - 1, kind * CHILDREN + number)
        call = CALLS[(kind + 3 * number + depth) % len(CALLS)].format(child=child)
        body += f"    result += {call}\n"
    return text + body + "    return result & 1023\n"


def run(function):
    x = 1
    while True:
        x = function(x)


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
for thread in range(THREADS):
    name = f"n_{thread}"
    exec(compile(source(name, DEPTH, thread), "callers", "exec"))
    threading.Thread(target=run, args=(globals()[name],), daemon=True).start()
print("ready", flush=True)
signal.pause()

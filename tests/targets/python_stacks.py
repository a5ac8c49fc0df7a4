# Threads that stand still at known places, and one that prints where: a line of JSON with an entry
# for each thread. Prints again for each line of input, and ends with the input.
import asyncio
import json
import os
import sys
import threading
import time
import unicodedata

try:
    import zlib
except ImportError:
    zlib = None

standing = threading.Semaphore(0)
pipe = os.pipe()
qualified = sys.version_info >= (3, 11)


def stand():
    standing.release()
    os.read(pipe[0], 1)


def decorated(function):
    def wrapper(*arguments):
        return function(*arguments)
    return wrapper


class Holder:
    def __init__(self, inner):
        if inner:
            inner()

    class Nested:
        @staticmethod
        def method():
            return list(map(lambda _: stand(), [1]))


@decorated
def by_generator(depth):
    def numbers(count):
        if count:
            yield from numbers(count - 1)
        else:
            yield [stand() for _ in range(1)]
    return next(numbers(depth))


def by_class():
    # The call becomes that of an inlined method only when it has often been made.
    for inner in [None] * 200 + [Holder.Nested.method]:
        Holder(inner)


def by_coroutine():
    async def leaf():
        stand()

    async def branch():
        await leaf()
    asyncio.run(branch())


def by_lines():
    return max(
        len("a"),
        sorted(
            [2],
            key=lambda it: (
                it,

                stand()
            ),
        )[0],
    )


def by_recursion(depth=150):
    return by_recursion(depth - 1) if depth else stand()


def größe():
    def 変数():
        class Ωmega:
            def 𐐀(self):
                stand()
        Ωmega().𐐀()
    変数()


def by_generated_code():
    body = "".join("    x = {}\n".format(number) for number in range(3000))
    text = "\n" * 70000 + "def large(stand):\n" + body + "\n" * 400 + "    stand()\nlarge(stand)\n"
    exec(compile(text, "dätei\udcff.py", "exec"), {"stand": stand})


def by_strange_name():
    def inner():
        stand()
    changes = {"co_name": "a\x1b[31m\n" + "n" * 300}
    if qualified:
        changes["co_qualname"] = "b\t\udc80" + "q" * 5000
    inner.__code__ = inner.__code__.replace(**changes)
    inner()


def by_library():
    work, argument = (zlib.compress, os.urandom(1 << 20)) if zlib else (os.urandom, 1 << 20)
    standing.release()
    while True: work(argument)


def by_sleep():
    standing.release()
    time.sleep(1000)


def by_lock():
    standing.release()
    threading.Event().wait()


def printable(text):
    shown = ("\ufffd" if 0xd800 <= ord(it) < 0xe000
             else "?" if unicodedata.category(it) == "Cc" else it for it in text)
    return "".join(shown)


def stack_of(frame):
    while frame:
        code = frame.f_code
        name = code.co_qualname if qualified else code.co_name
        yield printable(name), printable(code.co_filename), frame.f_lineno or 0
        frame = frame.f_back


def stacks():
    frames = sys._current_frames()
    threads = [it for it in threading.enumerate() if it is not threading.current_thread()]
    return [{"name": it.name, "tid": it.native_id, "pointer": it.ident,
             "frames": list(stack_of(frames[it.ident]))} for it in threads]


def witness():
    for _ in kinds:
        standing.acquire()
    # The threads still have to enter the calls in which they stay.
    time.sleep(0.2)
    before = None
    while before != stacks():
        before = stacks()
        time.sleep(0.1)
    while True:
        print(json.dumps({"version": sys.version.split()[0], "threads": stacks()}), flush=True)
        if not sys.stdin.readline():
            os._exit(0)


kinds = [by_class, lambda: by_generator(3), by_coroutine, by_lines, by_recursion, größe,
         by_generated_code, by_strange_name, by_library, by_sleep, by_lock]
if __name__ == "__main__":
    threading.Thread(target=witness, daemon=True).start()
    for kind in kinds[1:]:
        threading.Thread(target=kind, daemon=True).start()
    kinds[0]()

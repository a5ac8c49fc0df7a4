"""Holds still in calls of many kinds and tells its stacks, until SIGTERM.

  lockstep.py GATE

For each moment it prints the frames of all threads as JSON, innermost first, and then does not move
until a byte comes from the file GATE. Every statement that tells and holds is on one line, so that
the lines of all frames are those that were told.
"""
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time

GATE = os.open(sys.argv[1], os.O_RDWR)
MAIN = threading.get_ident()

try:
    import ctypes

    # Functions of this library are called with the interpreter's lock.
    LOCKED = ctypes.PyDLL(None)
    BUFFER = ctypes.create_string_buffer(1)
    LOCKED.prctl(0x59616D61, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
except (ImportError, OSError):
    LOCKED = None


def described(frame):
    frames = []
    while frame:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append([name, code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return frames


def tell(moment):
    found = sys._current_frames()
    threads = []
    for thread in threading.enumerate():
        # Of this thread, only the frames from the holding one on.
        frame = found[thread.ident]
        frame = frame.f_back if thread.ident == MAIN else frame
        one = {"tid": thread.native_id, "name": thread.name, "frames": described(frame)}
        threads.append(one)
    # The frames would keep each other alive, and with them all objects that they use.
    del found, frame
    print(json.dumps({"moment": moment, "threads": threads}), flush=True)


# Without the interpreter's lock, and with it.
def hold(moment):
    tell(moment); os.read(GATE, 1)  # fmt: skip


def hold_locked(moment):
    tell(moment); LOCKED.read(GATE, BUFFER, 1)  # fmt: skip


moments = []


def moment(function):
    moments.append(function)
    return function


@moment
def plainly(held):
    held("plainly")


@moment
def deeply(held, depth=200):
    return deeply(held, depth - 1) if depth else held("deeply")


@moment
def sorting(held):
    sorted([1], key=lambda _: held("sorting"))


@moment
def mapping(held):
    list(map(held, ["mapping"]))


@moment
def substituting(held):
    re.sub("x", lambda match: str(held("substituting")), "axb")


@moment
def dumping(held):
    json.dumps([object()], default=lambda _: held("dumping"))


class Made:
    def __new__(cls, held):
        held("making")
        return super().__new__(cls)

    def __init__(self, held):
        held("initializing")
        self.held = held

    @property
    def value(self):
        return self.held("property")

    @staticmethod
    def fixed(held):
        held("static method")

    @classmethod
    def of_class(cls, held):
        held("class method")

    def __lt__(self, other):
        return self.held("comparing") is None

    def __del__(self):
        self.held("deleting")


@moment
def methods(held):
    made = Made(held)
    made.value
    made.fixed(held)
    made.of_class(held)
    sorted([made, made])
    del made


@moment
def generators(held):
    def inner():
        yield held("generator")

    def outer():
        yield from inner()

    for _ in outer():
        pass
    sum(held("generator expression") is None for _ in range(1))


@moment
def comprehensions(held):
    [held("comprehension") for _ in range(1)]
    {held("set comprehension") for _ in range(1)}
    {_: [held("nested comprehension") for _ in range(1)] for _ in range(1)}


@moment
def coroutines(held):
    async def inner():
        held("coroutine")
        await asyncio.sleep(0)
        held("resumed coroutine")

    async def outer():
        await inner()
        async with managed():
            await asyncio.gather(inner(), other())

    async def other():
        await asyncio.sleep(0)
        held("gathered coroutine")

    @contextlib.asynccontextmanager
    async def managed():
        held("asynchronous context manager")
        yield

    loop = asyncio.new_event_loop()
    loop.run_until_complete(outer())
    loop.close()


@moment
def managers(held):
    @contextlib.contextmanager
    def managed():
        held("context manager")
        yield

    with managed():
        pass


@moment
def decorated(held):
    def decorate(function):
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @decorate
    @decorate
    def inner():
        held("decorated")

    inner()


@moment
def generated(held):
    exec(compile("\n\nheld('module of text')\n", "<generated>", "exec"), {"held": held})
    made = {"held": held}
    lines = "    total = 1\n" * 5000
    exec(compile("def long():\n" + lines + "    held('long')\n", "<long>", "exec"), made)
    made["long"]()
    eval("held('expression')", {"held": held})


@moment
def imported(held):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "held_at_import.py"), "w") as file:
            file.write("import builtins\n\nbuiltins.held('import')\n")
        import builtins

        builtins.held = held
        sys.path.insert(0, folder)
        import held_at_import  # noqa: F401

        del sys.modules["held_at_import"]
        sys.path.remove(folder)


@moment
def over_lines(held):
    return (
        len(
            [
                held(
                    "over lines",
                ),
            ],
        ),
        0,
    )


# Names in strings of one, two and four bytes a character.
@moment
def größe(held):
    def имя():
        held("names")

    def 𐌰𐌱():
        имя()

    𐌰𐌱()


@moment
def handling(held):
    def handler(_number, _frame):
        held("signal")

    signal.signal(signal.SIGUSR2, handler)
    os.kill(os.getpid(), signal.SIGUSR2)
    for _ in range(1000):
        pass


@moment
def raising(held):
    try:
        raise ValueError
    except ValueError:
        try:
            raise KeyError
        except KeyError:
            held("exception")
        finally:
            held("finally")


if LOCKED:

    @moment
    def called_back(held):
        made = ctypes.CFUNCTYPE(None)(lambda: held("callback") and None)
        made()


# Other threads. Each statement in which one stays is on one line.
class Sleeper:
    def sleeps(self):
        for _ in self.steps():
            pass

    def steps(self):
        yield time.sleep(10**6)


def reads():
    return [os.read(PIPE, 1) for _ in range(1)]


def waits():
    threading.Event().wait()


def deflates():
    while True: DEFLATE(DATA)  # fmt: skip


PIPE, KEPT_OPEN = os.pipe()
DATA = bytes(1 << 20)
try:
    from zlib import compress as DEFLATE
except ImportError:
    from binascii import crc32 as DEFLATE

signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
for function in (Sleeper().sleeps, reads, waits, deflates):
    threading.Thread(target=function, name="it-" + function.__name__, daemon=True).start()
time.sleep(0.2)
print("ready", flush=True)
for function in moments:
    function(hold)
    # The lock is with one thread: a moment with other threads' frames cannot be told inside it.
    if LOCKED and function is not imported:
        function(hold_locked)
print("done", flush=True)
while True:
    time.sleep(1)

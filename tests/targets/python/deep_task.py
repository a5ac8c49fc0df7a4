"""Works in a task, in a function with more callers than a sample has, until it is killed."""
import asyncio
import sys
import time

sys.setrecursionlimit(10_000)


def work_deep():
    until = time.perf_counter() + 0.004
    while time.perf_counter() < until:
        sum(range(100))


def calls(depth):
    if depth > 0:
        calls(depth - 1)
    else:
        work_deep()


async def works():
    while True:
        calls(1500)
        await asyncio.sleep(0)


async def main():
    task = asyncio.create_task(works(), name="deep")
    print("ready", flush=True)
    await task


asyncio.run(main())

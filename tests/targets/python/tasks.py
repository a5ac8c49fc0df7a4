"""Works in asyncio's tasks, each in a function of its own, until it is killed.

Prints `task_FUNCTION NAME` for each of these functions, with the name that the task tells.
"""
import asyncio
import threading
import time

NAMES = {"work_plain": "first", "work_wide": "größe €uro", "work_long": "long" * 100}
MADE = {}


def work():
    until = time.perf_counter() + 0.004
    while time.perf_counter() < until:
        sum(range(100))


# One function for each task.
for name in [*NAMES, "work_told", "work_silent", "work_done", "work_other"]:
    exec(f"def {name}():\n    work()\n", MADE)
    MADE["work"] = work


async def leaf(function):
    MADE[function]()


async def between(function):
    await leaf(function)


async def works(function, count):
    for _ in range(count):
        await between(function)
        await asyncio.sleep(0)


async def short():
    """Runs tasks that last a few milliseconds. All have the same name."""
    while True:
        await asyncio.create_task(works("work_done", 1), name="short")


def outside():
    work()


async def main():
    # The default names count the tasks.
    silent = asyncio.create_task(works("work_silent", 1 << 60))
    told = asyncio.create_task(works("work_told", 1 << 60))
    number = int(told.get_name().removeprefix("Task-"))
    tasks = [silent, told, asyncio.create_task(short(), name="maker")]
    for function, name in NAMES.items():
        tasks.append(asyncio.create_task(works(function, 1 << 60), name=name))
        print("task_" + function, tasks[-1].get_name(), flush=True)
    print("task_work_told", told.get_name(), flush=True)
    print("task_work_silent", f"Task-{number - 1}", flush=True)
    print("task_work_done", "short", flush=True)
    print("task_work_other", "of another loop", flush=True)
    # Its loop makes tasks, too, which the numbers would count.
    threading.Thread(target=other_loop, daemon=True).start()
    print("ready", flush=True)
    await asyncio.gather(*tasks)


def other_loop():
    async def others():
        task = asyncio.create_task(works("work_other", 1 << 60), name="of another loop")
        await task

    asyncio.run(others())


def without_tasks():
    while True:
        outside()


threading.Thread(target=without_tasks, daemon=True).start()
asyncio.run(main())

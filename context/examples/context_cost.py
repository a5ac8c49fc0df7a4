"""Like context_cost.rs, for the Python module: prints lines "WHAT MEAN P50 P99 P999", in nanoseconds per call."""

import time

import traceprof_context

BATCH = 32
BATCHES = 20_000
TURNS = range(BATCH)


def batch_of_set():
    for turn in TURNS:
        traceprof_context.set(turn, 1)


def batch_of_tag():
    for turn in TURNS:
        traceprof_context.tag("tenant", turn)


def batch_of_span():
    for turn in TURNS:
        with traceprof_context.span(turn, 1):
            pass


def measure(what, call):
    # The first round warms up.
    for _ in range(2):
        batches = []
        for _ in range(BATCHES):
            begin = time.perf_counter_ns()
            call()
            batches.append((time.perf_counter_ns() - begin) / BATCH)
    batches.sort()
    shares = (batches[BATCHES * share // 1000] for share in (500, 990, 999))
    print(what, *(f"{ns:.0f}" for ns in (sum(batches) / BATCHES, *shares)))


assert traceprof_context.is_available()
measure("python_set", batch_of_set)
measure("python_tag", batch_of_tag)
measure("python_span", batch_of_span)

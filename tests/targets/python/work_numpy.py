"""Arrays, and loops that use them. Until SIGTERM."""
import os
import signal

# Its threads would wait actively for work.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np


def smooth(values):
    for _ in range(20):
        values = (np.roll(values, 1) + values + np.roll(values, -1)) / 3
    return values


def solve(matrix, vector):
    return np.linalg.solve(matrix, vector)


def each_row(table):
    total = 0.0
    for row in table:
        total += float(row.sum()) + float(np.sort(row)[0])
    return total


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
random = np.random.default_rng(1)
VALUES, MATRIX, TABLE = random.random(20000), random.random((120, 120)), random.random((500, 200))
print("ready", flush=True)
while True:
    smooth(VALUES)
    solve(MATRIX, VALUES[:120])
    each_row(TABLE)

"""Does a fixed amount of work when it is told to, and prints what time that took.

  fixed.py ROUNDS DEPTH

The work is done below so many calls. It begins after a line on standard input.
"""
import sys
import time


def count_words(text):
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: -counts[word])


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def work(rounds):
    for _ in range(rounds):
        fibonacci(12)
        count_words(TEXT)


def below(depth, rounds):
    return below(depth - 1, rounds) if depth else work(rounds)


TEXT = " ".join("word%d" % (i * 7919 % 503) for i in range(2000))
sys.stdin.readline()
start, start_cpu = time.perf_counter(), time.process_time()
below(int(sys.argv[2]), int(sys.argv[1]))
print("elapsed_ms", (time.perf_counter() - start) * 1000)
print("cpu_ms", (time.process_time() - start_cpu) * 1000, flush=True)

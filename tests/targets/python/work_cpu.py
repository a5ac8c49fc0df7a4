"""Work in the interpreter only: calls, loops, tables, texts. Until SIGTERM."""
import os
import signal


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def sieve(limit):
    found, crossed = [], bytearray(limit)
    for n in range(2, limit):
        if not crossed[n]:
            found.append(n)
            for multiple in range(n * n, limit, n):
                crossed[multiple] = 1
    return found


def count_words(text):
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: -counts[word])


def multiply(one, other):
    columns = list(zip(*other))
    return [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in one]


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
print("ready", flush=True)
TEXT = " ".join("word%d" % (i * 7919 % 503) for i in range(5000))
TABLE = [[i * k % 7 for i in range(24)] for k in range(24)]
while True:
    fibonacci(16)
    sieve(6000)
    count_words(TEXT)
    multiply(TABLE, TABLE)

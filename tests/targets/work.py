# Typical work of Python programs: text, numbers, tables, sorting, hashing, until SIGTERM.
import hashlib
import json
import os
import random
import re
import signal
import zlib

random.seed(1)
rows = [{"key%d" % i: random.random(), "text": "abc def " * 10} for i in range(200)]


def texts():
    text = json.dumps(rows)
    json.loads(text)
    re.findall(r"(\w+)\s+(\w+)", text)
    return text


def numbers():
    table = {}
    for i in range(20000):
        table[i % 977] = table.get(i % 977, 0) + i * i
    return sorted(random.random() for _ in range(5000))


def bytes_of(text):
    data = text.encode()
    return hashlib.sha256(data).digest() + zlib.compress(data)


signal.signal(signal.SIGTERM, lambda *_: os._exit(17))
print("ready", flush=True)
while True:
    bytes_of(texts())
    numbers()

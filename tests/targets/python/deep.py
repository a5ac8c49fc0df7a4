"""Computes at the end of a recursion as deep as the argument says."""
import sys

depth = int(sys.argv[1])
sys.setrecursionlimit(depth + 1000)


def bottom():
    while True:
        sum(i * i for i in range(1000))


def down(left):
    if left:
        down(left - 1)
    else:
        bottom()


print("ready", flush=True)
down(depth)

"""What a shell executes: the first line works already. Ends by itself."""
n = 1
for i in range(3000000): n = n * i % 97 + 1  # fmt: skip


def late_1(n):
    for i in range(3000000):
        n = n * i % 97 + 1
    return n


def late_0():
    return late_1(1)


late_0()
raise SystemExit(17)

# Makes a function for each request, and forgets it.
import sys

number = 0
print(sys.version.split()[0], flush=True)
while True:
    number += 1
    names = {}
    text = "\n" * (number % 5000) + "def made_{0}(depth):\n    x = 0\n".format(number)
    text += "    for _ in range(20):\n        x += sum(range(30))\n"
    text += "    return made_{0}(depth - 1) if depth else x\n".format(number)
    exec(compile(text, "file_{}".format(number), "exec"), names)
    names["made_{}".format(number)](number % 7)

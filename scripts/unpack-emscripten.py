#!/usr/bin/env python3
"""Unpacks the files of a program for WebAssembly, which Emscripten packed into a compressed file.

  unpack-emscripten.py PROGRAM.js PROGRAM.data PREFIX DIRECTORY

The program holds the list of files. Only files below PREFIX are unpacked, into DIRECTORY.
"""
import json
import os
import re
import sys

CHUNK_SIZE = 2048


def block(packed):
    """Returns the bytes of a block in the format of LZ4."""
    out, at = bytearray(), 0

    def length(count):
        nonlocal at
        while count >= 15:
            more, at = packed[at], at + 1
            count += more
            if more != 255:
                break
        return count

    while at < len(packed):
        token, at = packed[at], at + 1
        literals = length(token >> 4)
        out += packed[at : at + literals]
        at += literals
        if at >= len(packed):
            break
        distance, at = packed[at] | packed[at + 1] << 8, at + 2
        for _ in range(length(token & 15) + 4):
            out.append(out[-distance])
    return bytes(out)


def main(program, data, prefix, directory):
    with open(program, encoding="utf-8") as file:
        text = file.read()
    with open(data, "rb") as file:
        packed = file.read()

    def numbers(name):
        # Long numbers are written as 12e3.
        listed = json.loads(re.search(r'"%s":(\[[0-9e,]{9,}\])' % name, text).group(1))
        return [int(number) for number in listed]

    whole = bytearray()
    for start, size, is_packed in zip(*map(numbers, ("offsets", "sizes", "successes"))):
        chunk = packed[start : start + size]
        whole += block(chunk) if is_packed else chunk
    found = re.findall(r'"filename":"([^"]+)","start":([0-9e]+),"end":([0-9e]+)', text)
    for name, start, end in found:
        if name.startswith(prefix) and ".." not in name:
            path = os.path.join(directory, name[len(prefix) :])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(whole[int(float(start)) : int(float(end))])


main(*sys.argv[1:])

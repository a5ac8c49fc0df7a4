# Prints the line tables of functions, and the line of every position as the interpreter itself looks
# it up. The output of each version is a part of src/runtime/tests/line_tables.txt: version, name,
# first line, table, then the lines, each with the number of its bytes.
import ctypes
import sys
import types

SOURCE = '''
def simple(a):
    b = a + 1
    return b
def backward(a):
    return max(
        len(
            a
        ), sum([
            1,
            2]),
        key=lambda it: (
            it
        ))
@staticmethod
def structured(a):
    try:
        with open(
                a) as file:
            for line in file:
                if line: continue
                else: break
    except (OSError,
            ValueError) as error:
        raise
    finally:
        del a
    while True:
        pass
def generator(a):
    yield from (it for it in
                a
                if it)
    return [
        x for y in a
        for x in y]
class Thing:
    """Text."""
    field: int = 1
    def method(self, a=1,
               *, b=2): return self, \\
                   a, b
async def coroutine(a):
    async with a as b:
        await b
''' + '''def far(a):
    a = 1''' + '\n' * 400 + '''    a = (2 +''' + '\n' * 90000 + '''        a.b)
    return a
'''
LONG = 'def long(a):\n' + ''.join(
    '    a = a + a[{0}]{1}'.format(number, '\n' * (number % 7 + 1)) for number in range(60))


def functions(code):
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from functions(constant)


lookup = ctypes.pythonapi.PyCode_Addr2Line
lookup.argtypes, lookup.restype = [ctypes.py_object, ctypes.c_int], ctypes.c_int
seen = set()
for whole in [compile(SOURCE, 'source', 'exec'), compile(LONG, 'source', 'exec')]:
    for code in functions(whole):
        table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
        runs = []
        for position in range(0, len(code.co_code), 2):
            line = max(0, lookup(code, position))
            if runs and runs[-1][0] == line:
                runs[-1][1] += 2
            else:
                runs.append([line, 2])
        print(sys.version.split()[0], code.co_name, code.co_firstlineno, table.hex() or '-',
              ' '.join('{}*{}'.format(*run) for run in runs))

"""Tells the traceprof profiler which span each thread works on.

    import traceprof_context

    with traceprof_context.span(span_id, root_id, route="/checkout", tenant=42):
        ...

    traceprof_context.set(span_id, root_id)   # until it is set again
    traceprof_context.tag("route", "/checkout")
    traceprof_context.clear()

Every sample that a profiler takes of this thread then carries the span, the root span and the tags; its stack
may well end in C code. Where no profiler is attached, an update costs a call into a library.

The library is libtraceprof_context.so, built by the line that traceprof_context.h documents. It is looked for
where TRACEPROF_CONTEXT_LIBRARY says, beside this file, and where the system looks. Without it, or where it
cannot work, everything here does nothing, and `is_available()` says so.

A library, and not memory that Python writes itself: the order of the stores is what keeps a reader from seeing
half of an update, and Python promises no order. Threads that end give their place back by the library, too.

The context is that of an operating system thread. A coroutine that waits lets others run on its thread: set its
span again after each `await`, or keep spans to code that does not wait.
"""

import ctypes
import os

__all__ = ["span", "set", "clear", "tag", "is_available"]

_TAGS = 10
_NUMBER_MAX = 0xFFFFFFFF
_NAME = "libtraceprof_context.so"


class _Values(ctypes.Structure):
    """traceprof_context_values."""

    _fields_ = [
        ("span", ctypes.c_uint64),
        ("root_span", ctypes.c_uint64),
        ("checksum", ctypes.c_uint64),
        ("tags", ctypes.c_uint32 * _TAGS),
    ]


def _load():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), _NAME)
    for path in (os.environ.get("TRACEPROF_CONTEXT_LIBRARY"), beside, _NAME):
        if path:
            try:
                # Of functions that take nanoseconds, the interpreter's lock is not let go.
                return ctypes.PyDLL(path)
            except OSError:
                pass
    return None


def _function(name, result, *arguments):
    function = getattr(_library, name)
    function.restype = result
    function.argtypes = arguments
    return function


_library = _load()
if _library is not None:
    _set = _function("traceprof_context_set", None, ctypes.c_uint64, ctypes.c_uint64)
    _clear = _function("traceprof_context_clear", None)
    _get = _function("traceprof_context_get", None, ctypes.c_void_p)
    _restore = _function("traceprof_context_restore", None, ctypes.c_void_p)
    _set_tag = _function("traceprof_context_set_tag", None, ctypes.c_int, ctypes.c_uint32)
    _tag_number = _function("traceprof_context_tag_number", ctypes.c_int, ctypes.c_char_p)
    _tag_text = _function("traceprof_context_tag_text", ctypes.c_int, ctypes.c_char_p)
    _text = _function("traceprof_context_text", ctypes.c_uint32, ctypes.c_char_p)
    _is_available = _function("traceprof_context_is_available", ctypes.c_int)
else:

    def _nothing(*_):
        return 0

    def _set(span_id, root_id):
        # What the library would refuse is refused without it, too.
        ctypes.c_uint64(span_id), ctypes.c_uint64(root_id)

    _clear = _get = _restore = _set_tag = _nothing
    _tag_number = _tag_text = _text = _is_available = _nothing

# Places of names, and ids of texts, which stay what they are for the life of the process and in its children.
_places = {}
_texts = {}
# As many texts as are worth remembering; the library remembers all that it has room for.
_TEXTS_MAX = 4096


def is_available():
    """Whether a profiler can see what this thread sets."""
    return bool(_is_available())


def set(span_id, root_id):
    """This thread works on the span from now on. The tags stay as they are.

    The lower 64 bits of longer ids are published. Other types raise TypeError.
    """
    try:
        _set(span_id, root_id)
    except ctypes.ArgumentError as error:
        raise TypeError("the ids of spans are ints: %s" % error) from None


def clear():
    """This thread works on no span, and has no tags."""
    _clear()


def tag(name, value):
    """Sets a tag of this thread: a str, or an int of 32 bits, not negative; None takes it off.

    The first value decides whether the tag's values are texts or numbers. There are ten names at most; a value
    under another one, of the other kind, or of another type is dropped, and False is returned. What cannot be
    encoded is replaced: nothing is raised for a value, as a program must not fail for what it is watched by.
    """
    if not isinstance(name, str):
        return False
    if value is None:
        for is_text in (True, False):
            place = _places.get((name, is_text), -1)
            if place >= 0:
                _set_tag(place, 0)
        return True
    is_text = isinstance(value, str)
    # A bool is an int.
    if not is_text and not (isinstance(value, int) and 0 <= value <= _NUMBER_MAX):
        return False
    place = _places.get((name, is_text))
    if place is None:
        register = _tag_text if is_text else _tag_number
        place = _places[name, is_text] = register(_encoded(name))
    if place < 0:
        return False
    _set_tag(place, _text_id(value) if is_text else value)
    return True


def _text_id(value):
    known = _texts.get(value)
    if known is None:
        known = _text(_encoded(value))
        if len(_texts) < _TEXTS_MAX:
            _texts[value] = known
    return known


def _encoded(text):
    return text.encode("utf-8", "replace")


class span:
    """This thread works on the span while the `with` block runs, and then on what it worked on before."""

    __slots__ = ("_ids", "_tags", "_previous")

    def __init__(self, span_id, root_id, **tags):
        self._ids = (span_id, root_id)
        self._tags = tags

    def __enter__(self):
        self._previous = _Values()
        _get(ctypes.byref(self._previous))
        try:
            set(*self._ids)
            for name, value in self._tags.items():
                tag(name, value)
        except BaseException:
            # No `__exit__` follows.
            _restore(ctypes.byref(self._previous))
            raise
        return self

    def __exit__(self, *_):
        _restore(ctypes.byref(self._previous))
        return False

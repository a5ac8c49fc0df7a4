"""Publishes the span of each thread to the traceprof profiler.

    import traceprof_context

    with traceprof_context.span(span_id, root_id, route="/checkout", tenant=42):
        ...

    traceprof_context.set(span_id, root_id)   # until the next set or clear
    traceprof_context.tag("route", "/checkout")
    traceprof_context.clear()

Each sample that a profiler takes of this thread then carries the span, the root span and the tags, also if its
stack ends in C code. Without a profiler, an update costs a call into a library.

The library is libtraceprof_context.so, built by the command that traceprof_context.h documents. The module
searches for it at the path in TRACEPROF_CONTEXT_LIBRARY, beside this file, and in the system's directories.
Without it, or where it cannot work, every call does nothing, and `is_available()` returns False.

Python does not write the memory itself: the order of the stores keeps a reader from seeing half of an update,
and Python guarantees no order. The library also releases the entries of threads that exit.

The context belongs to an operating system thread. A coroutine that waits lets others run on its thread: set its
span again after each `await`, or use spans only in code that does not wait.
"""

import ctypes
import os

__all__ = ["span", "set", "clear", "tag", "is_available"]

_TAGS = 10
_NUMBER_MAX = 0xFFFFFFFF
_NAME = "libtraceprof_context.so"


class _Values(ctypes.Structure):
    """The structure traceprof_context_values."""

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
                # PyDLL keeps the interpreter's lock, because the functions take only nanoseconds.
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
        # Raises for the same arguments as the library.
        ctypes.c_uint64(span_id), ctypes.c_uint64(root_id)

    _clear = _get = _restore = _set_tag = _nothing
    _tag_number = _tag_text = _text = _is_available = _nothing

# Indices of names, and ids of texts. They never change in the process and its children.
_indices = {}
_texts = {}
# Maximum number of texts to cache. The library knows all texts that it has room for.
_TEXTS_MAX = 4096


def is_available():
    """Returns whether a profiler can read what this thread sets."""
    return bool(_is_available())


def set(span_id, root_id):
    """Sets the span on which this thread works from now on. The tags stay as they are.

    Of longer ids, the lower 64 bits are published. Other types raise TypeError.
    """
    try:
        _set(span_id, root_id)
    except ctypes.ArgumentError as error:
        raise TypeError("span ids must be ints: %s" % error) from None


def clear():
    """Clears the span and all tags of this thread."""
    _clear()


def tag(name, value):
    """Sets a tag of this thread to a str or an unsigned 32-bit int; None removes the tag.

    The first value decides whether the tag's values are texts or numbers. There are at most ten names. A value
    with a further name, of the other kind or of another type is dropped, and the call returns False. Characters
    that cannot be encoded are replaced. No value raises an exception: a profiler must not make a program fail.
    """
    if not isinstance(name, str):
        return False
    if value is None:
        for is_text in (True, False):
            index = _indices.get((name, is_text), -1)
            if index >= 0:
                _set_tag(index, 0)
        return True
    is_text = isinstance(value, str)
    # A bool is an int.
    if not is_text and not (isinstance(value, int) and 0 <= value <= _NUMBER_MAX):
        return False
    index = _indices.get((name, is_text))
    if index is None:
        register = _tag_text if is_text else _tag_number
        index = _indices[name, is_text] = register(_encoded(name))
    if index < 0:
        return False
    _set_tag(index, _text_id(value) if is_text else value)
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
    """Sets a span on this thread while the `with` block runs, and then restores the previous context."""

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
            # The interpreter does not call `__exit__` now.
            _restore(ctypes.byref(self._previous))
            raise
        return self

    def __exit__(self, *_):
        _restore(ctypes.byref(self._previous))
        return False

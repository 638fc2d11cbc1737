"""Runs compiled functions as plain Python until they are compiled.

Compilation takes most of a minute after an install. On graphs of some thousand ops the same functions,
interpreted, cost a plan in less than a second. So a first plan need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

import numpy as np
from numba.core.dispatcher import Dispatcher, _DispatcherBase

_COMPILES: Final[Any] = vars(_DispatcherBase)["_compile_for_args"]
_plain: Final[dict[Any, Callable[..., Any]]] = {}


@contextmanager
def interpreted_until_compiled() -> Iterator[None]:
    """Within this context, what is neither loaded nor in numba's cache is interpreted, and not compiled."""
    dispatchers: Any = _DispatcherBase
    dispatchers._compile_for_args = _loaded_or_plain
    try:
        with np.errstate(all="ignore"):  # as compiled functions do
            yield
    finally:
        # Not what stood there before: that may be ours, where two threads overlap.
        dispatchers._compile_for_args = _COMPILES


def _loaded_or_plain(dispatcher: Any, *args: Any) -> Callable[..., Any]:
    """What numba calls for arguments of types that it has not met in this process."""
    signature = tuple(map(dispatcher.typeof_pyval, args))
    is_cached = dispatcher._cache.load_overload(signature, dispatcher.targetctx) is not None
    return _COMPILES(dispatcher, *args) if is_cached else plain(dispatcher)


def plain(dispatcher: Any) -> Callable[..., Any]:
    """The function as written, which calls others as written."""
    if dispatcher not in _plain:
        function = dispatcher.py_func
        names = dict(function.__globals__)
        _plain[dispatcher] = FunctionType(function.__code__, names, argdefs=function.__defaults__)
        called = [name for name in function.__code__.co_names if isinstance(names.get(name), Dispatcher)]
        names.update({name: plain(names[name]) for name in called})
    return _plain[dispatcher]

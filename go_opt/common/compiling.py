"""How hot loops are compiled: by numba, without the interpreter's lock, and kept in its cache.

``compiled`` is for functions that Python calls, ``compiled_inner`` for those that only compiled ones
call: without wrappers for Python the whole compiles in three quarters of the time. Python must not
call an inner one, that ends the process; ``tests/test_compiling.py`` finds such calls.

Functions that allocate no arrays are ``uncounted``: no call counts references to the arrays of a
tuple that it passes on, which takes longer than most of these functions do.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
from numba import njit

_Decorator = Callable[[Callable[..., Any]], Any]
_OUTER: Final[dict[str, Any]] = {"cache": True, "nogil": True, "no_cfunc_wrapper": True}
_INNER: Final[dict[str, Any]] = {**_OUTER, "no_cpython_wrapper": True}
_UNCOUNTED: Final[dict[str, Any]] = {"_nrt": False}

compiled: Final[_Decorator] = njit(**_OUTER)
compiled_inner: Final[_Decorator] = njit(**_INNER)
compiled_inline: Final[_Decorator] = njit(**_INNER, inline="always")
uncounted: Final[_Decorator] = njit(**_OUTER, **_UNCOUNTED)
uncounted_inner: Final[_Decorator] = njit(**_INNER, **_UNCOUNTED)


@contextmanager
def rare_collections() -> Iterator[None]:
    """While kernels compile: that makes many objects and little garbage, whose collection takes a tenth."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


# Within compiled functions: integers of a certain width, which are ``int`` to the type checker.
int32: Final = cast("Callable[[Any], int]", np.int32)
int64: Final = cast("Callable[[Any], int]", np.int64)
uint64: Final = cast("Callable[[Any], int]", np.uint64)

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
from numba.core.targetconfig import ConfigStack
from numba.core.types.functions import BaseFunction

from go_opt.common.inner_code import no_inner_machine_code

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
def quick_compilation() -> Iterator[None]:
    """While kernels compile: in three fifths of the time.

    Inner functions get no machine code. Compiling makes many objects and little garbage, so that is rarely
    collected. And numba tries up to twenty implementations of each ``+`` and ``max``: here once for each
    types of arguments.
    """
    numba_calls: Any = BaseFunction
    thresholds, find = gc.get_threshold(), numba_calls.get_call_type
    found: dict[Any, Any] = {}

    def find_once(function: Any, context: Any, args: Any, kws: Any) -> Any:
        flags = cast(
            "Any", ConfigStack
        ).top_or_none()  # of which implementations inherit whether references are counted
        key = function, context, tuple(args), tuple(kws.items()), flags is None or flags.nrt
        if key not in found:
            found[key] = find(function, context, args, kws)
        return found[key]

    gc.set_threshold(50_000, *thresholds[1:])
    numba_calls.get_call_type = find_once
    try:
        with no_inner_machine_code():
            yield
    finally:
        numba_calls.get_call_type = find
        gc.set_threshold(*thresholds)


# Within compiled functions: integers of a certain width, which are ``int`` to the type checker.
int32: Final = cast("Callable[[Any], int]", np.int32)
int64: Final = cast("Callable[[Any], int]", np.int64)
uint64: Final = cast("Callable[[Any], int]", np.uint64)

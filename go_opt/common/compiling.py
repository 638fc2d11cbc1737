"""How hot loops are compiled: by numba, without the interpreter's lock, and kept on disk.

``compiled`` is for functions that Python calls, ``compiled_inner`` for those that only compiled functions
call. Without wrappers for Python, compilation takes three quarters of the time. If Python calls an inner
function, the process dies; ``tests/test_compiling.py`` finds such calls.

Functions that allocate no arrays are ``uncounted``: their calls do not count references to the arrays of
the tuples that they pass on. Counting takes longer than most of these functions.

A tuple of twenty arrays is 150 arguments of machine code, seven for each array. So functions of a hot loop
that are called in one or two places are ``uncounted_inline``: LLVM always inlines them.
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

from go_opt.common.caches.kernels import KernelCache
from go_opt.common.inner_code import no_inner_machine_code

_Decorator = Callable[[Callable[..., Any]], Any]
_OUTER: Final[dict[str, Any]] = {"nogil": True, "no_cfunc_wrapper": True}
_INNER: Final[dict[str, Any]] = {**_OUTER, "no_cpython_wrapper": True}
_UNCOUNTED: Final[dict[str, Any]] = {"_nrt": False}


def _kept(**options: Any) -> _Decorator:
    """Compiles with these options of numba, and keeps what is compiled."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher: Any = njit(function, **options)
        if dispatcher is not function:  # else it is interpreted
            dispatcher._cache = KernelCache(function)
        return dispatcher

    return decorate


compiled: Final = _kept(**_OUTER)
compiled_inner: Final = _kept(**_INNER)
compiled_inline: Final = _kept(**_INNER, inline="always")
uncounted: Final = _kept(**_OUTER, **_UNCOUNTED)
uncounted_inner: Final = _kept(**_INNER, **_UNCOUNTED)
uncounted_inline: Final = _kept(**_INNER, **_UNCOUNTED, forceinline=True)


@contextmanager
def quick_compilation() -> Iterator[None]:
    """Within this context kernels compile in two thirds of the time.

    Inner functions get no machine code. Garbage is collected rarely, since compilation makes little of it.
    Numba tries up to twenty implementations of each ``+`` and ``max``: here only once for each combination
    of argument types.
    """
    numba_calls: Any = BaseFunction
    thresholds, find = gc.get_threshold(), numba_calls.get_call_type
    found: dict[Any, Any] = {}

    def find_once(function: Any, context: Any, args: Any, kws: Any) -> Any:
        # Implementations inherit from these flags whether references are counted.
        flags = cast("Any", ConfigStack).top_or_none()
        key = function, context, tuple(args), tuple(kws.items()), flags is None or flags.nrt
        if key not in found:
            found[key] = find(function, context, args, kws)
        return found[key]

    gc.set_threshold(200_000, 50, *thresholds[2:])
    numba_calls.get_call_type = find_once
    try:
        with no_inner_machine_code():
            yield
    finally:
        numba_calls.get_call_type = find
        gc.set_threshold(*thresholds)


# For compiled functions: integers of fixed width, which are ``int`` to the type checker.
int32: Final = cast("Callable[[Any], int]", np.int32)
int64: Final = cast("Callable[[Any], int]", np.int64)
uint64: Final = cast("Callable[[Any], int]", np.uint64)

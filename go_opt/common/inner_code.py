"""Machine code only for the functions that Python calls.

Numba optimizes every compiled function and generates its machine code, also where only other compiled
functions call it. These take its LLVM code into theirs, where it is optimized again, so the machine code of
an inner function never runs. Without it the kernels of a first run compile in four fifths of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from numba.core.cpu import CPUContext, _dynfunc  # type: ignore[attr-defined]

_WRAPPER = "_ZN7cpython"  # begins the names of the functions that take Python's arguments


@contextmanager
def no_inner_machine_code() -> Iterator[None]:
    """While kernels compile."""
    context: Any = CPUContext
    executable = context.get_executable

    def get_executable(self: Any, library: Any, function: Any, environment: Any) -> Any:
        if library._finalized or _has_wrapper(library):  # the first where it comes from a cache
            return executable(self, library, function, environment)
        _close(library)
        # What callers find the function by; called, it would end the process.
        module, name = function.lookup_module(), function.qualname
        return _dynfunc.make_function(module, name, "", 0, environment, (library,))

    context.get_executable = get_executable
    try:
        yield
    finally:
        context.get_executable = executable


def _has_wrapper(library: Any) -> bool:
    """Whether Python can call the function that was compiled."""
    return any(
        function.name.startswith(_WRAPPER) and not function.is_declaration
        for function in library._final_module.functions
    )


def _close(library: Any) -> None:
    """Link what the function calls, and leave it to callers to optimize the whole; caches keep LLVM code."""
    library._optimize_final_module = _do_nothing
    library._finalize_final_module = partial(_finalize, library)
    library.serialize_using_object_code = library.serialize_using_bitcode
    library._ensure_finalized()


def _do_nothing() -> None:
    """In place of optimization."""


def _finalize(library: Any) -> None:
    library._finalize_dynamic_globals()
    library._verify_declare_only_symbols()
    library._finalized = True

"""Generates machine code only for functions that Python calls.

Numba optimizes every compiled function and generates its machine code, even if only other compiled
functions call it. Callers link its LLVM code into theirs and optimize it again, so the machine code of
an inner function never runs. Without it the kernels of a first run compile in four fifths of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from numba.core.cpu import CPUContext, _dynfunc  # type: ignore[attr-defined]

_WRAPPER = "_ZN7cpython"  # prefix of the wrappers that Python calls


@contextmanager
def no_inner_machine_code() -> Iterator[None]:
    """Within this context, inner functions that compile get no machine code."""
    context: Any = CPUContext
    executable = context.get_executable

    def get_executable(self: Any, library: Any, function: Any, environment: Any) -> Any:
        if library._finalized or _has_wrapper(library):  # a library from the cache is finalized
            return executable(self, library, function, environment)
        _close(library)
        # Callers find the function by this object; calling it from Python would end the process.
        module, name = function.lookup_module(), function.qualname
        return _dynfunc.make_function(module, name, "", 0, environment, (library,))

    context.get_executable = get_executable
    try:
        yield
    finally:
        context.get_executable = executable


def _has_wrapper(library: Any) -> bool:
    """Whether Python can call the compiled function."""
    return any(
        function.name.startswith(_WRAPPER) and not function.is_declaration
        for function in library._final_module.functions
    )


def _close(library: Any) -> None:
    """Link the callees but do not optimize: callers do that. Caches keep LLVM code, not machine code."""
    library._optimize_final_module = _do_nothing
    library._finalize_final_module = partial(_finalize, library)
    library.serialize_using_object_code = library.serialize_using_bitcode
    library._ensure_finalized()


def _do_nothing() -> None:
    """Replaces the optimization."""


def _finalize(library: Any) -> None:
    library._finalize_dynamic_globals()
    library._verify_declare_only_symbols()
    library._finalized = True

"""Ops by name or by type, or by regular expressions of these."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from go_opt.common.arrays import LongArray
from go_opt.common.suggestion import suggestion
from go_opt.errors import InvalidInputError
from go_opt.model.codecs.fields import shown
from go_opt.model.graph import Graph


class NamesOps(Protocol):
    """A constraint that names ops; as text it describes itself in errors."""

    @property
    def ops(self) -> str | Sequence[str]: ...
    @property
    def op_types(self) -> str | Sequence[str]: ...


def match_ops(graph: Graph, constraint: NamesOps) -> LongArray:
    """Returns the ops that ``constraint`` names, and those of the types that it names, ascending.

    An existing name or type means itself, even if it is also a regular expression.

    Raises:
      InvalidInputError: a pattern matches no op, or is not a regular expression.
    """
    names = {name: [op] for name, op in graph.op_index.items()}
    of_type: dict[str, list[int]] = {}
    for op, op_type in enumerate(graph.op_types):
        of_type.setdefault(op_type, []).append(op)
    found = {op for pattern in constraint.ops for op in _match(names, pattern, constraint, "op")}
    for pattern in constraint.op_types:
        found.update(_match(of_type, pattern, constraint, "op type"))
    return np.array(sorted(found), dtype=np.int64)


def _match(ops: Mapping[str, list[int]], pattern: str, constraint: NamesOps, what: str) -> Iterable[int]:
    """Returns the ops whose name or type, a key of ``ops``, the pattern matches."""
    if pattern in ops:
        return ops[pattern]
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:  # counts too large, groups too deep
        raise InvalidInputError(
            f"{constraint}: {shown(pattern)} is neither an {what} nor a regular expression ({error}).",
            field="constraints",
        ) from None
    found = [op for name, of_name in ops.items() if compiled.fullmatch(name) for op in of_name]
    if not found:
        hint = suggestion(pattern, list(ops))
        raise InvalidInputError(f"{constraint}: {pattern!r} matches no {what}{hint}", field="constraints")
    return found

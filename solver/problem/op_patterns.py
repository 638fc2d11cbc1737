"""Ops by name or by type, or by regular expressions of these."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    names = graph.op_index
    found = {names[name] for pattern in constraint.ops for name in _match(names, pattern, constraint, "op")}
    if constraint.op_types:
        types = dict.fromkeys(graph.op_types)
        wanted = {
            of for pattern in constraint.op_types for of in _match(types, pattern, constraint, "op type")
        }
        found.update(np.flatnonzero(graph.has_type(wanted.__contains__)).tolist())
    return np.array(sorted(found), dtype=np.int64)


def _match(known: Mapping[str, object], pattern: str, constraint: NamesOps, what: str) -> list[str]:
    """Returns the names or types, keys of ``known``, that the pattern matches."""
    if pattern in known:
        return [pattern]
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:  # counts too large, groups too deep
        raise InvalidInputError(
            f"{constraint}: {shown(pattern)} is neither an {what} nor a regular expression ({error}).",
            field="constraints",
        ) from None
    found = [name for name in known if compiled.fullmatch(name)]
    if not found:
        hint = suggestion(pattern, list(known))
        raise InvalidInputError(f"{constraint}: {pattern!r} matches no {what}{hint}", field="constraints")
    return found

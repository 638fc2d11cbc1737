"""Ops by name or by regular expression."""

from __future__ import annotations

import re

import numpy as np

from go_opt.common.arrays import LongArray
from go_opt.common.suggestion import suggestion
from go_opt.errors import InvalidInputError
from go_opt.model.codecs.fields import shown
from go_opt.model.graph import Graph
from go_opt.solver.problem.user_constraints import Ops


def match_ops(graph: Graph, ops: Ops, what: object) -> LongArray:
    """Returns the ops that ``ops`` names, ascending; ``what`` names the constraint in errors.

    An existing op name means that op, even if the name is also a regular expression.

    Raises:
      InvalidInputError: a pattern matches no op, or is not a regular expression.
    """
    patterns = [ops] if isinstance(ops, str) else list(ops)
    if not patterns:
        raise InvalidInputError(f"{what}: names no op.", field="constraints")
    found = {op for pattern in patterns for op in _match(graph, pattern, what)}
    return np.array(sorted(found), dtype=np.int64)


def _match(graph: Graph, pattern: str, what: object) -> list[int]:
    if pattern in graph.op_index:
        return [graph.op_index[pattern]]
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:  # counts too large, groups too deep
        raise InvalidInputError(
            f"{what}: {shown(pattern)} is neither an op nor a regular expression ({error}).",
            field="constraints",
        ) from None
    found = [op for op, name in enumerate(graph.op_names) if compiled.fullmatch(name)]
    if not found:
        hint = suggestion(pattern, graph.op_names)
        raise InvalidInputError(f"{what}: {pattern!r} matches no op{hint}", field="constraints")
    return found

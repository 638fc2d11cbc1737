"""A folder of plans of earlier searches, with which searches on like graphs begin."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from go_opt.api.plans import evaluate
from go_opt.common.files import make_folder
from go_opt.common.outputs import PLAN
from go_opt.env import Target
from go_opt.env.copies.splits import planned_graph
from go_opt.env.model.metrics import Objective, objective_s
from go_opt.errors import GoOptError, InvalidInputError, PlanError
from go_opt.model.codecs.plan_json import load_plan, save_plan
from go_opt.model.codecs.start_files import load_start
from go_opt.model.graph import Graph
from go_opt.model.start import Start
from go_opt.result import OptimizeResult

_log = logging.getLogger(__name__)
METHOD: Final = "remembered plan"
_MOST_BYTES: Final = 256 * 2**20
_DIGITS: Final = 16
_NAME: Final = re.compile(
    rf"(?P<structure>[0-9a-f]{{{_DIGITS}}})-(?P<graph>[0-9a-f]{{{_DIGITS}}})-(?P<target>[0-9a-f]{{{_DIGITS}}})"
    r"-(?P<chips>[0-9]+)-(?P<objective>[a-z]+)\.json"
)


class PlanStore:
    """The best plan found for each graph, target and objective, one plan file each.

    Ops, their types and the edges between them are a graph's *structure*: a plan of the same structure has
    decisions for all ops of a graph, whatever its batch or precision and its target. Several processes may
    share a folder. Files of other names, and those that cannot be read, are left alone.

    Args:
      most_bytes: of all plans; those not used for longest are deleted.

    Raises:
      InvalidInputError: the folder cannot be made or written to.
    """

    def __init__(self, folder: str | Path, most_bytes: int = _MOST_BYTES) -> None:
        self._folder, self._most_bytes = Path(folder), most_bytes
        make_folder(self._folder)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise InvalidInputError(f"folder {str(folder)[:100]!r} cannot be written to.", field="remember")

    def nearest(self, graph: Graph, target: Target, objective: Objective) -> Start | None:
        """The plan to begin with: of this structure, and of the same objective, target and graph if there is
        one; else for the package whose number of chips is closest. It follows from what the folder holds."""
        near = []
        for path, name in self._plans(_structure(graph)):
            differs = (
                name["objective"] != objective,
                name["target"] != target.fingerprint[:_DIGITS],
                abs(math.log(max(int(name["chips"]), 1) / target.num_chips)),
                name["graph"] != graph.fingerprint[:_DIGITS],
            )
            near.append((differs, path.name, path))
        for _, _, path in sorted(near):
            with suppress(PlanError):
                start = replace(load_start(path), method=METHOD, names_ops=False)
                with suppress(OSError):
                    os.utime(path)
                return start
        return None

    def keep(self, graph: Graph, target: Target, result: OptimizeResult) -> None:
        """Keep the plan of a search, unless a better one of its kind is there; a failure is logged."""
        keys = _structure(graph), graph.fingerprint[:_DIGITS], target.fingerprint[:_DIGITS]
        path = self._folder / f"{'-'.join(keys)}-{target.num_chips}-{result.objective}.json"
        with suppress(GoOptError, OSError):  # not there, of another version, or not a plan of this graph
            if not PLAN.is_of(path):
                return
            kept = evaluate(graph, target, load_plan(path))
            if kept.valid and objective_s(kept, result.objective) <= result.objective_s:
                return
        names = planned_graph(graph, result.plan).op_names
        try:
            save_plan(result.plan, path, {"op_names": list(names)})
            self._forget(path)
        except (InvalidInputError, OSError) as error:  # the plan itself is there, and is not lost
            _log.warning("the plan is not remembered: %s", error)

    def _plans(self, structure: str = "") -> list[tuple[Path, re.Match[str]]]:
        paths = self._folder.glob(f"{structure}*.json")
        return [(path, name) for path in paths if (name := _NAME.fullmatch(path.name)) is not None]

    def _forget(self, newest: Path) -> None:
        """Delete the plans used longest ago, until the others fit."""
        found = []
        for path, _ in self._plans():
            with suppress(OSError):  # another process deleted it
                status = path.stat()
                found.append((path == newest, status.st_mtime_ns, path.name, status.st_size, path))
        total = sum(size for *_, size, _ in found)
        for is_newest, _, _, size, path in sorted(found):
            if total <= self._most_bytes or is_newest:
                return
            path.unlink(missing_ok=True)
            total -= size


@lru_cache(maxsize=16)
def _structure(graph: Graph) -> str:
    """A digest of names, types and edges of the ops."""
    digest = hashlib.sha256()
    for op in sorted(zip(graph.op_names, graph.op_types, strict=True)):
        digest.update(f"{op}".encode())
    names, (ptr, source) = graph.op_names, graph.predecessors
    edges = (
        (names[source[i]], names[op]) for op in range(graph.num_ops) for i in range(ptr[op], ptr[op + 1])
    )
    for edge in sorted(edges):
        digest.update(f"{edge}".encode())
    return digest.hexdigest()[:_DIGITS]

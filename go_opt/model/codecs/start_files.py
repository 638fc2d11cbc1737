"""Reads starting points of a search: plan files and placements from other tools."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from go_opt.common.files import open_table, read_json
from go_opt.errors import InvalidInputError, PlanError
from go_opt.model.codecs.plan_json import load_plan
from go_opt.model.graph import Graph
from go_opt.model.start import OpStart, Start

_DEVICE: Final = re.compile(r"(?:[a-z]+:)?([0-9]{1,6})")  # 3, cuda:3
_SHOWN: Final = 3  # names in a message


def load_start(path: str | Path) -> Start:
    """The plan in a file as a start, by op name.

    Raises:
      PlanError: the file is not a plan, or has no ``op_names``.
    """
    plan = load_plan(path)
    names = read_json(path, "plan file", PlanError).get("op_names")
    is_whole = isinstance(names, list) and len(names) == len(plan.order)
    if not is_whole or not all(isinstance(name, str) for name in names):
        raise PlanError(
            f"plan file {str(path)!r}: op_names must name its {len(plan.order)} ops.", field="op_names"
        )
    return Start.of_plan(plan, names)


def load_placement(path: str | Path, graph: Graph) -> Start:
    """A placement of ``graph``: a CSV file of ``op,chip``, or a ``.json`` object of modules and devices.

    The latter is accelerate's ``device_map``: the longest module path that is a prefix of an op's
    name decides; ``.`` and ``/`` both separate the parts of a name.

    Raises:
      InvalidInputError: the file cannot be read, or a line does not name an op and a chip.
    """
    if str(path).endswith(".json"):
        return Start(by_prefix(_device_map(path), graph))
    return Start(_by_name(path, graph))


def _by_name(path: str | Path, graph: Graph) -> dict[str, OpStart]:
    lines = open_table(path, "placement file")
    try:
        rows = [(line, row) for line, row in enumerate(csv.reader(lines), 1) if row]
    except csv.Error:
        raise _bad(path, "cannot be read: it is no CSV file") from None
    if rows and [cell.strip() for cell in rows[0][1]] == ["op", "chip"]:
        del rows[0]
    found, known, unknown = dict[str, OpStart](), set(graph.op_names), []
    for line, row in rows:
        if len(row) != 2 or (chip := _DEVICE.fullmatch(row[1].strip())) is None:
            raise _bad(path, f"line {line} must be an op and a chip, not {','.join(row)[:60]!r}")
        name = row[0].strip()
        if name in found:
            raise _bad(path, f"line {line} has op {name!r} a second time")
        if name not in known:
            unknown.append(name)
        found[name] = OpStart(int(chip[1]))
    if unknown:
        shown = ", ".join(map(repr, unknown[:_SHOWN]))
        raise _bad(path, f"{len(unknown)} ops are not in graph {graph.name!r}: {shown}")
    return found


def _device_map(path: str | Path) -> dict[str, int]:
    data = read_json(path, "placement file")
    if not isinstance(data, dict):
        raise _bad(path, "must be a JSON object of module names and devices")
    chips = {}
    for module, device in data.items():
        match = _DEVICE.fullmatch(str(device))
        if match is None or isinstance(device, bool):
            raise _bad(path, f"device {str(device)[:40]!r} of module {module!r} is not the number of a chip")
        chips[_parts(module)] = int(match[1])
    return chips


def by_prefix(chips: Mapping[str, int], graph: Graph) -> dict[str, OpStart]:
    """The chip of each op by its longest prefix among the paths; ``.`` separates the parts of a path."""
    found = {}
    for name in graph.op_names:
        parts = _parts(name).split(".")
        prefixes = (".".join(parts[:count]) for count in range(len(parts), -1, -1))
        chip = next((chips[prefix] for prefix in prefixes if prefix in chips), None)
        if chip is not None:
            found[name] = OpStart(chip)
    return found


def _parts(name: str) -> str:
    return name.replace("/", ".").strip(".")


def _bad(path: str | Path, problem: str) -> InvalidInputError:
    return InvalidInputError(f"placement file {str(path)!r}: {problem}.", field="placement")

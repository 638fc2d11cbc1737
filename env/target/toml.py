"""A target as the text of a target file: the inverse of :func:`go_opt.env.parse_target`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from go_opt.env.gpu.figures import Collective, KernelFigures
from go_opt.env.target.definition import Level, Target
from go_opt.env.target.kinds import ChipKind, KindParameters, SimulatorParameters, ideal_parameters
from go_opt.env.target.topology import Topology
from go_opt.errors import TargetError

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_OF_ONE_RATE: Final = ("ring", "chain", "all_to_all", "host_star")


def target_to_toml(target: Target, marks: Mapping[str, str] = _NONE) -> str:
    """Text that parses to the same target, except for the fingerprint, which is that of the text.

    A grid is written as the list of its links. Figures of kernels and collectives get their ``marks``, by
    name, such as ``fitted``; those of a collective by ``op.name``.

    Raises:
      TargetError: the links of a ring, chain or star differ, which no file can express.
    """
    fields = {
        "name": target.name,
        "description": target.description,
        "native_dtype": target.native_dtype,
        "overlap": target.overlap,
        "constraints": vars(target.constraints),
        "topology": _topology(target.name, target.topology),
        "host": {
            "in_bytes_per_s": target.host_in_bytes_per_s,
            "out_bytes_per_s": target.host_out_bytes_per_s,
        },
    }
    if target.fitted_to:
        fields["fitted_to"] = target.fitted_to
    if target.power_w:
        fields["power_w"] = target.power_w
    if replace(target.simulator, kinds=()) != ideal_parameters(0):
        fields["simulator"] = _simulator(target.simulator)
    if target.kernel_patterns:
        fields["kernel_patterns"] = list(target.kernel_patterns)
    if target.analytical_effects:
        fields["analytical"] = {"effects": list(target.analytical_effects)}
    lines = [*_lines(fields)]
    for kind in target.kinds:
        lines += ["", "[[kinds]]", *_lines(_kind(kind))]
        if kind.kernels is not None:
            lines += ["", "[kinds.kernels]", *_lines(stated(kind.kernels), marks)]
    for one in target.collectives:
        lines += ["", "[[collectives]]", *_lines(stated(one), marks, f"{one.op}.")]
    for level in target.levels:
        lines += ["", "[[levels]]", *_lines(stated(level))]
    return "\n".join(lines) + "\n"


def _lines(fields: Mapping[str, Any], marks: Mapping[str, str] = _NONE, prefix: str = "") -> Iterator[str]:
    """A field a line, with what ``marks`` say behind it."""
    for key, value in fields.items():
        mark = marks.get(prefix + key)
        yield f"{key} = {toml_value(value)}" + (f" # {mark}" if mark else "")


def _topology(name: str, topology: Topology) -> dict[str, Any]:
    rates, latencies_s = topology.rate_bytes_per_s, topology.latency_s
    is_uniform = len(np.unique(rates)) <= 1 and len(np.unique(latencies_s)) <= 1
    if not topology.num_links:  # a single chip: the rate has no effect
        kind = topology.kind if topology.is_ring else "all_to_all"
        return {"kind": kind, "rate_bytes_per_s": 1.0, "latency_s": 0.0}
    if topology.kind in _OF_ONE_RATE and is_uniform:
        rate, latency_s = float(rates[0]), float(latencies_s[0])
        return {"kind": topology.kind, "rate_bytes_per_s": rate, "latency_s": latency_s}
    if topology.is_ring or topology.kind == "host_star":
        raise TargetError(f"target {name!r}: the links of a {topology.kind} differ.", field="topology")
    rows = zip(topology.link_from.tolist(), topology.link_to.tolist(), rates, latencies_s, strict=True)
    links = [
        {"source": source, "destination": to, "rate_bytes_per_s": float(rate), "latency_s": float(latency_s)}
        for source, to, rate, latency_s in rows
    ]
    return {"kind": "listed", "links": links}


def _kind(kind: ChipKind) -> dict[str, Any]:
    fields = {key: value for key, value in vars(kind).items() if key not in ("simulator", "kernels")}
    for name in ("op_types", "not_op_types", "flops_per_s_by_op_type"):
        if not fields[name]:
            del fields[name]
    if kind.simulator == KindParameters(kernels=kind.kernels):
        return fields
    table = {key: value for key, value in vars(kind.simulator).items() if key != "kernels"}
    tile = [table.pop(f"tile_{axis}") for axis in ("rows", "inner", "columns")]
    factors = [
        {"op_type": one.op_type, "factor": one.factor} | ({"shape": list(one.shape)} if one.shape else {})
        for one in table.pop("op_factors")
    ]
    return {
        **fields,
        "simulator": {"tile": tile, **table} | ({"op_factors": factors} if factors else {}),
    }


def stated(figures: KernelFigures | Collective | Level) -> dict[str, Any]:
    """The fields of a table that are not at an empty default."""
    return {key: value for key, value in vars(figures).items() if value}


def _simulator(parameters: SimulatorParameters) -> dict[str, Any]:
    return {key: value for key, value in vars(parameters).items() if key not in ("kinds", "fit_by_size")}


def toml_value(value: Any) -> str:
    """A string, number, flag, list or table as a TOML value."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # JSON writes strings, numbers and flags as TOML does, except for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml_value(name)

"""Targets: the hardware a plan is for, read from TOML and validated."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.common.files import read_text
from go_opt.common.suggestion import suggestion
from go_opt.env.target.chip_kind import ChipKind, read_chip_kind
from go_opt.env.target.simulator_parameters import (
    EFFECTS,
    SimulatorParameters,
    ideal_parameters,
    read_effects,
    read_package,
)
from go_opt.env.target.toml_table import TomlTable, parse_toml
from go_opt.env.target.topology import TOPOLOGIES, Topology, build_topology
from go_opt.errors import InvalidInputError, TargetError
from go_opt.model.dtypes import DTYPES, dtype_code
from go_opt.model.kernel_patterns import PATTERNS

MAX_CHIPS: Final = 4096
PAPER: Final = ":paper"  # suffix of a target's name
MAX_ROUTED_CHIPS: Final = 256  # on topologies whose routes are tables of pairs of chips
NoSkip = Literal["prefix", "all", "off"]
Triangle = Literal["longest_path", "three_chip", "adjacent", "off"]


@dataclass(frozen=True)
class Constraints:
    """Which static constraints hold (design section 6)."""

    acyclic: bool  # ring, chain: results go to no lower chip; elsewhere: chips form no cycle
    no_skip: NoSkip
    triangle: Triangle


@dataclass(frozen=True, eq=False)
class Target:
    """A package of chips, its links, its host and its rules. Axes: ``D`` chips, ``L`` links."""

    name: str
    description: str
    native_dtype: str
    overlap: bool  # True: transfers overlap compute
    power_w: float
    constraints: Constraints
    kinds: tuple[ChipKind, ...]
    topology: Topology
    host_in_bytes_per_s: float
    host_out_bytes_per_s: float
    fingerprint: str  # SHA-256 of all fields but the texts
    source: str  # the name or path it was loaded from
    simulator: SimulatorParameters  # effects of the simulated fidelity; ideal if the file states none
    analytical_effects: tuple[str, ...]  # those that the analytical model includes
    kernel_patterns: tuple[str, ...] = ()  # those that the runtime has as one kernel
    fitted_to: str = ""  # the measurements that figures were fitted to, and how far off they are

    @cached_property
    def modelled(self) -> SimulatorParameters:
        """The simulator's parameters with only the effects that the analytical model includes."""
        return self.simulator.without([e for e in EFFECTS if e not in self.analytical_effects])

    def __repr__(self) -> str:
        size = f"{self.num_chips} chips, {self.topology.num_links} links"
        return f"Target({self.name!r}: {size}, {self.native_dtype})"

    @property
    def num_chips(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def goes_forward(self) -> bool:
        """Whether chips form a ring or chain and results go to no lower chip."""
        return self.constraints.acyclic and self.topology.is_ring

    @cached_property
    def chip_kind(self) -> IntArray:
        """[D] index into ``kinds``."""
        return np.repeat(np.arange(len(self.kinds), dtype=np.int32), [kind.count for kind in self.kinds])

    @cached_property
    def chip_sram_bytes(self) -> LongArray:
        """[D] memory of each chip."""
        return np.array([kind.sram_bytes for kind in self.kinds], dtype=np.int64)[self.chip_kind]

    @cached_property
    def link_names(self) -> tuple[str, ...]:
        """[L] names in the order of ``Metrics.link_s``: the links, then host in, host out."""
        pairs = zip(self.topology.link_src, self.topology.link_dst, strict=True)
        return (*(f"link {src}->{dst}" for src, dst in pairs), "host in", "host out")

    def bottleneck_name(self, index: int) -> str:
        """``chip 3 compute`` (``chip 3 compute and transfers`` without overlap), ``link 2->3`` …"""
        if index < self.num_chips:
            return f"chip {index} compute" if self.overlap else f"chip {index} compute and transfers"
        return self.link_names[index - self.num_chips]


def target_names() -> tuple[str, ...]:
    """Names of the targets that ship with go-opt."""
    folder = files("go_opt.env.targets")
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


@lru_cache(maxsize=32)
def _shipped(name: str) -> Target:
    return parse_target(target_text(name), name)


def shipped_target(name: str) -> Target:
    """A shipped target by name; never reads another file.

    Raises:
      TargetError: no target of that name ships with go-opt.
    """
    if name.removesuffix(PAPER) not in target_names():
        raise _unknown(name)
    return _shipped(name)


def load_target(name_or_path: str | Path) -> Target:
    """A shipped target by name, or one of your own by the path of its TOML file.

    The suffix ``:paper`` selects the plain model of Xie et al., without the simulator's effects.

    Raises:
      TargetError: the name is unknown, or the file is missing or malformed.
    """
    name = str(name_or_path)
    is_shipped = name.removesuffix(PAPER) in target_names()
    return _shipped(name) if is_shipped else parse_target(target_text(name), name)


def target_text(name_or_path: str | Path) -> str:
    """The TOML text of a shipped target, or of a file of your own; errors as :func:`load_target`."""
    name = str(name_or_path).removesuffix(PAPER)
    if name in target_names():
        return (files("go_opt.env.targets") / f"{name}.toml").read_text("utf-8")
    if not name.endswith(".toml") and not os.path.exists(name):
        raise _unknown(name)
    return read_text(name, "target file", TargetError)


def _unknown(name: str) -> TargetError:
    known = target_names()
    choice = f"(known: {', '.join(known)}; or give a .toml file)"
    return TargetError(f"unknown target {name[:80]!r} {choice}{suggestion(name, known)}", field="target")


def parse_target(text: str, source: str) -> Target:
    """A target from the text of a TOML file; ``source`` names it in errors."""
    try:
        target = _build(parse_toml(text), source)
    except InvalidInputError as error:
        raise TargetError(f"target {source[:200]!r}: {error}", field=error.field) from None
    if not source.endswith(PAPER):
        return target
    plain = hashlib.sha256(f"{target.fingerprint}{PAPER}".encode()).hexdigest()
    return replace(target, fingerprint=plain, analytical_effects=())


def _build(data: dict[str, Any], source: str) -> Target:
    top = TomlTable(data, "")
    name, native = top.text("name"), DTYPES[dtype_code(top.text("native_dtype"), field="native_dtype")]
    rules = top.table("constraints")
    constraints = Constraints(
        acyclic=rules.flag("acyclic"),
        no_skip=rules.choice("no_skip", ("prefix", "all", "off")),
        triangle=rules.choice("triangle", ("longest_path", "three_chip", "adjacent", "off")),
    )
    rules.finish()
    kinds = tuple(read_chip_kind(table) for table in top.tables("kinds"))
    if len({kind.name for kind in kinds}) < len(kinds):
        raise TargetError("kinds: two kinds have the same name.", field="kinds")
    num_chips = sum(kind.count for kind in kinds)
    if not 1 <= num_chips <= MAX_CHIPS:
        raise TargetError(f"kinds: {num_chips} chips in all, must be 1 to {MAX_CHIPS}.", field="kinds")
    host = top.table("host")
    host_in, host_out = host.positive("in_bytes_per_s"), host.positive("out_bytes_per_s")
    host.finish()
    topology = _topology(top.table("topology"), num_chips)
    target = Target(
        name=name,
        description=top.text("description", ""),
        native_dtype=native,
        overlap=top.flag("overlap"),
        power_w=top.positive("power_w", 1.0) if "power_w" in data else 0.0,
        constraints=constraints,
        kinds=kinds,
        topology=topology,
        host_in_bytes_per_s=host_in,
        host_out_bytes_per_s=host_out,
        fingerprint=_fingerprint(data),
        source=source,
        simulator=_simulator(top, kinds),
        analytical_effects=read_effects(top),
        kernel_patterns=top.choices("kernel_patterns", tuple(PATTERNS), []),
        fitted_to=top.text("fitted_to", ""),
    )
    top.finish()
    rule = "constraints.triangle"
    if constraints.triangle != "off" and not constraints.acyclic:
        raise TargetError(
            f"{rule} needs constraints.acyclic: it is a rule for forward dependencies.", field=rule
        )
    if constraints.triangle != "off" and not topology.is_ring:
        raise TargetError(f"{rule} needs a ring or a chain, not {topology.kind}.", field=rule)
    return target


def _simulator(top: TomlTable, kinds: tuple[ChipKind, ...]) -> SimulatorParameters:
    of_kinds = [kind.simulator for kind in kinds]
    if top.has("simulator"):
        return read_package(top.table("simulator"), of_kinds)
    return replace(ideal_parameters(len(kinds)), kinds=tuple(of_kinds))


def _topology(table: TomlTable, num_chips: int) -> Topology:
    kind = table.choice("kind", TOPOLOGIES)
    if num_chips > MAX_ROUTED_CHIPS and kind not in ("ring", "chain"):
        raise TargetError(
            f"kinds: {num_chips} chips in all, a {kind} has at most {MAX_ROUTED_CHIPS}.", field="kinds"
        )
    links = table.links(num_chips) if kind == "listed" else ()
    rate = 1.0 if kind == "listed" else table.positive("rate_bytes_per_s")
    latency = 0.0 if kind == "listed" else table.non_negative("latency_s")
    columns = table.count("columns") if kind == "mesh2d" else 0
    table.finish()
    return build_topology(kind, num_chips, rate, latency, columns=columns, links=links)


def _fingerprint(data: Mapping[str, Any]) -> str:
    costing = {key: value for key, value in data.items() if key not in ("description", "fitted_to")}
    return hashlib.sha256(json.dumps(costing, sort_keys=True, default=str).encode()).hexdigest()

"""Targets: the hardware a plan is for, read from TOML and validated."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np

from go_opt.common.arrays import IntArray, LongArray
from go_opt.common.files import read_text
from go_opt.common.suggestion import suggestion
from go_opt.env.gpu.figures import Collective
from go_opt.env.target.fields import (
    ANY_TEXT,
    COUNT,
    DTYPE,
    FLAG,
    NATURAL,
    NON_NEGATIVE,
    POSITIVE,
    TEXT,
    Field,
    is_natural,
    must_be,
    one_of,
    parse_toml,
    read_table,
    rows,
    some_of,
    table,
    table_of,
    table_schema,
)
from go_opt.env.target.kinds import (
    ANALYTICAL_EFFECTS,
    CHIP_KIND,
    COLLECTIVE,
    EFFECTS,
    EFFECTS_IN_MODEL,
    PACKAGE_PARAMETERS,
    ChipKind,
    SimulatorParameters,
)
from go_opt.env.target.topology import TOPOLOGIES, Topology, build_topology
from go_opt.errors import InvalidInputError, TargetError
from go_opt.model.kernel_patterns import PATTERNS

# Clusters that ship in any size, and the target that is like one of their nodes.
CLUSTERS: Final = {"dgx-a100": "gpu-8", "dgx-h100": "h100-sxm-8", "ethernet-a100": "gpu-8"}
MAX_DEVICES: Final = 99_999
_NODE: Final = 8
_NAME: Final = re.compile(rf"({'|'.join(CLUSTERS)})-([1-9][0-9]{{0,4}})")


@dataclass(frozen=True)
class Level:
    """Devices that one network joins: those of a node, or of all nodes."""

    name: Annotated[str, TEXT("The level's name, such as node or cluster.")]
    size: Annotated[int, COUNT("Devices in it.")]
    rate_bytes_per_s: Annotated[
        float, POSITIVE("Bytes per second that a device sends, above the first level a node.")
    ]
    latency_s: Annotated[float, NON_NEGATIVE("Latency of a message in seconds.")]
    host_s_per_layer: Annotated[
        float,
        NON_NEGATIVE(
            "Least seconds in which the host launches a layer, forwards and backwards (default: 0)."
        ),
    ] = 0.0


def _check_levels(levels: tuple[Level, ...], num_chips: int) -> None:
    """Raise unless there are no levels, or those of a node of ``num_chips`` and of a cluster."""
    if not levels:
        return
    if len(levels) > 2:
        raise TargetError(f"levels: {len(levels)} are given, must be 1 or 2.", field="levels")
    if levels[0].size != num_chips:
        raise TargetError(
            f"levels[0].size must be the number of chips, {num_chips}, not {levels[0].size}.",
            field="levels[0].size",
        )
    if not num_chips <= levels[-1].size <= MAX_DEVICES:
        raise TargetError(
            f"levels[1].size must be {num_chips} to {MAX_DEVICES} devices, not {levels[-1].size}.",
            field="levels[1].size",
        )


def _cluster_text(name: str) -> str | None:
    """The TOML text of a cluster of this name, such as ``dgx-a100-512``; None if it is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    family, devices = match[1], int(match[2])
    chips = min(devices, _NODE)
    text = _text_of(f"{CLUSTERS[family]}.toml")
    power_w = re.search(r"(?m)^power_w = ([0-9]+)", text)
    assert power_w is not None, family
    for field, value in {
        "name": f'"{name}"',
        "description": f'"{devices} GPUs in nodes like {CLUSTERS[family]}, for training steps"',
        "power_w": str(int(power_w[1]) * chips // _NODE),
        "count": str(chips),
    }.items():
        text, found = re.subn(rf"(?m)^{field} = (\"[^\"]*\"|[0-9]+)", f"{field} = {value}", text, count=1)
        assert found == 1, (family, field)
    levels = _text_of(f"{family}.levels").replace("NODE", str(chips)).replace("CLUSTER", str(devices))
    return f"{text}\n{levels}"


MAX_CHIPS: Final = 4096
SEQUENCE_WAITS: Final = "latency of a sequence"  # the bottleneck if sequences wait for their last inference
PAPER: Final = ":paper"  # suffix of a target's name
MAX_ROUTED_CHIPS: Final = 256  # on topologies whose routes are tables of pairs of chips
NoSkip = Literal["prefix", "all", "off"]
Triangle = Literal["longest_path", "three_chip", "adjacent", "off"]


@dataclass(frozen=True)
class Constraints:
    """Which static constraints hold (design section 6)."""

    acyclic: Annotated[
        bool, FLAG("Results go to no lower chip on a ring or chain; elsewhere chips form no cycle.")
    ]
    no_skip: Annotated[NoSkip, one_of(*get_args(NoSkip))("Which chips must be used.")]
    triangle: Annotated[
        Triangle,
        one_of(*get_args(Triangle))("Which detours parallel to a direct dependency are forbidden."),
    ]


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
    collectives: tuple[Collective, ...] = ()
    levels: tuple[Level, ...] = ()  # networks of a training step, the node's first
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
    def num_devices(self) -> int:
        """Chips of all nodes; ``num_chips`` are those of one."""
        return self.levels[-1].size if self.levels else self.num_chips

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
        if index - self.num_chips < len(self.link_names):
            return self.link_names[index - self.num_chips]
        return SEQUENCE_WAITS


def target_names() -> tuple[str, ...]:
    """Names of the targets that ship with go-opt."""
    folder = files("go_opt.env.targets")
    whole = [f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")]
    return tuple(sorted([*whole, *(f"{family}-8" for family in CLUSTERS)]))


def _ships(name: str) -> bool:
    return name in target_names() or _cluster_text(name) is not None


def _text_of(file: str) -> str:
    return (files("go_opt.env.targets") / file).read_text("utf-8")


@lru_cache(maxsize=32)
def _shipped(name: str) -> Target:
    return parse_target(target_text(name), name)


def shipped_target(name: str) -> Target:
    """A shipped target by name; never reads another file.

    Raises:
      TargetError: no target of that name ships with go-opt.
    """
    if not _ships(name.removesuffix(PAPER)):
        raise _unknown(name)
    return _shipped(name)


def load_target(name_or_path: str | Path) -> Target:
    """A shipped target by name, or one of your own by the path of its TOML file.

    The suffix ``:paper`` selects the plain model of Xie et al., without the simulator's effects.

    Raises:
      TargetError: the name is unknown, or the file is missing or malformed.
    """
    name = str(name_or_path)
    return _shipped(name) if _ships(name.removesuffix(PAPER)) else parse_target(target_text(name), name)


def target_text(name_or_path: str | Path) -> str:
    """The TOML text of a shipped target, or of a file of your own; errors as :func:`load_target`."""
    name = str(name_or_path).removesuffix(PAPER)
    text = _cluster_text(name)
    if text is not None:
        return text
    if name in target_names():
        return _text_of(f"{name}.toml")
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


def target_schema() -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of a target file, for editors and other tools.

    Only the reader checks rules across fields: links join existing chips, a triangle rule needs a ring or
    chain, names of kinds differ, a kind has one list of op types, and kernels or tiles, levels have as many
    chips as the node, and a topology has a maximum number of chips.
    """
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "go-opt target"}
    description = {"description": "Chips, links, host and rules (docs/hardware.md)."}
    return head | description | table_schema(_FIELDS)


def _build(data: dict[str, Any], source: str) -> Target:
    given = read_table(data, "", _FIELDS)
    kinds, constraints = given["kinds"], given["constraints"]
    if len({kind.name for kind in kinds}) < len(kinds):
        raise TargetError("kinds: two kinds have the same name.", field="kinds")
    num_chips = sum(kind.count for kind in kinds)
    if not 1 <= num_chips <= MAX_CHIPS:
        raise TargetError(f"kinds: {num_chips} chips in all, must be 1 to {MAX_CHIPS}.", field="kinds")
    topology = _topology(given.pop("topology"), num_chips)
    host, package = given.pop("host"), given.pop("simulator", {"fit_by_size": True})
    of_kinds = tuple(kind.simulator for kind in kinds)
    target = Target(
        **{"description": "", "power_w": 0.0, "analytical_effects": ANALYTICAL_EFFECTS}
        | given.pop("analytical", {})
        | given,
        topology=topology,
        host_in_bytes_per_s=host["in_bytes_per_s"],
        host_out_bytes_per_s=host["out_bytes_per_s"],
        fingerprint=_fingerprint(data),
        source=source,
        simulator=SimulatorParameters(of_kinds, **{"fit_by_size": False} | package),
    )
    _check_levels(target.levels, num_chips)
    rule = "constraints.triangle"
    if constraints.triangle != "off" and not constraints.acyclic:
        raise TargetError(
            f"{rule} needs constraints.acyclic: it is a rule for forward dependencies.", field=rule
        )
    if constraints.triangle != "off" and not topology.is_ring:
        raise TargetError(f"{rule} needs a ring or a chain, not {topology.kind}.", field=rule)
    return target


def _topology(data: Mapping[str, Any], num_chips: int) -> Topology:
    kind = data["kind"]
    if num_chips > MAX_ROUTED_CHIPS and kind not in ("ring", "chain"):
        raise TargetError(
            f"kinds: {num_chips} chips in all, a {kind} has at most {MAX_ROUTED_CHIPS}.", field="kinds"
        )
    for i, (source, destination, *_) in enumerate(data.get("links", ())):
        for end, chip in (("source", source), ("destination", destination)):
            if not is_natural(chip) or chip >= num_chips:
                raise must_be(f"topology.links[{i}].{end}", f"a chip from 0 to {num_chips - 1}", chip)
        if source == destination:
            path = f"topology.links[{i}].destination"
            raise must_be(path, "another chip than the source", destination)
    return build_topology(
        kind,
        num_chips,
        data.get("rate_bytes_per_s", 1.0),
        data.get("latency_s", 0.0),
        columns=data.get("columns", 0),
        links=data.get("links", ()),
    )


def _topology_fields(kind: str) -> dict[str, Field]:
    """The fields of a table ``topology`` of this kind."""
    rate = {
        "rate_bytes_per_s": POSITIVE("Bytes per second of a link, in each direction."),
        "latency_s": NON_NEGATIVE("Latency of a link in seconds."),
    }
    fixed = {"kind": Field(KIND.read, {"const": kind})}
    if kind == "listed":
        any_chip = Field(lambda chip, path: chip, NATURAL.schema)  # the number of chips is known later
        ends = {
            "source": any_chip("The chip that sends."),
            "destination": any_chip("The chip that receives."),
        }
        link = table(ends | rate, lambda **link: tuple(link.values()))("A link in one direction.")
        return fixed | {"links": rows(link)}
    return fixed | rate | ({"columns": COUNT("Chips per row.")} if kind == "mesh2d" else {})


def _read_topology(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, Mapping) and "kind" in value:
        return read_table(value, path, _topology_fields(KIND.read(value["kind"], f"{path}.kind")))
    return read_table(value, path, {"kind": KIND})


def _fingerprint(data: Mapping[str, Any]) -> str:
    costing = {key: value for key, value in data.items() if key not in ("description", "fitted_to")}
    return hashlib.sha256(json.dumps(costing, sort_keys=True, default=str).encode()).hexdigest()


KIND: Final = one_of(*TOPOLOGIES)
_HOST: Final = {
    "in_bytes_per_s": POSITIVE("From the host to the chips: inputs and streamed weights."),
    "out_bytes_per_s": POSITIVE("From the chips to the host: outputs."),
}
_FIELDS: Final[dict[str, Field]] = {
    "name": TEXT("The target's name in plans."),
    "native_dtype": DTYPE("The type of floating tensors."),
    "constraints": table_of(Constraints)("Rules of every placement."),
    "kinds": rows(CHIP_KIND)("Chips are numbered in the order of their kinds."),
    "host": table(_HOST)("Both directions are shared by all chips."),
    "topology": Field(
        _read_topology,
        {
            "oneOf": [
                table_schema(_topology_fields(kind)) | {"description": f"Links of a {kind}."}
                for kind in TOPOLOGIES
            ]
        },
    ),
    "overlap": FLAG("Transfers overlap compute."),
    "description": ANY_TEXT("What the target is, in a line.", is_optional=True),
    "power_w": POSITIVE("Watts of all chips.", is_optional=True),
    "simulator": PACKAGE_PARAMETERS("Simulator parameters of the package.", is_optional=True),
    "analytical": EFFECTS_IN_MODEL("Simulator effects in the analytical model.", is_optional=True),
    "kernel_patterns": some_of(*PATTERNS)(
        "Patterns that the runtime has as one kernel (docs/environment.md).", is_optional=True
    ),
    "collectives": rows(COLLECTIVE)("Collectives of several chips.", is_optional=True),
    "levels": rows(table_of(Level)("A level."))(
        "Networks of training steps: of a node, of a cluster of nodes.", is_optional=True
    ),
    "fitted_to": TEXT("The measurements that go-opt calibrate fitted figures to.", is_optional=True),
}


def first_chips(target: Target, count: int) -> Target:
    """The package of chips 0 to ``count - 1``; a plan for it is one for ``target`` too.

    Raises:
      TargetError: the target has fewer chips, its plans must use all of them, or routes among
        the first chips pass through others.
    """
    if not 1 <= count <= target.num_chips:
        raise TargetError(
            f"{count} chips of {target.name!r}, which has 1 to {target.num_chips}.", field="chips"
        )
    if count == target.num_chips:
        return target
    if target.constraints.no_skip == "all":
        raise TargetError(f"plans for {target.name!r} use all of its chips.", field="constraints.no_skip")
    kinds, left = [], count
    for kind in target.kinds:
        kinds.append(replace(kind, count=min(kind.count, left)))
        left -= kinds[-1].count
    return replace(
        target,
        kinds=tuple(kinds),
        topology=_among_first(target, count),
        fingerprint=hashlib.sha256(f"{target.fingerprint}:{count} chips".encode()).hexdigest(),
    )


def _among_first(target: Target, count: int) -> Topology:
    topology = target.topology
    if topology.kind == "ring" and not target.goes_forward:
        raise TargetError(
            f"results of {target.name!r} go around the whole ring, so it needs all chips.", field="topology"
        )
    kept = (topology.link_from < count) & (topology.link_to < count)
    part = replace(
        topology,
        kind="chain" if topology.kind == "ring" else topology.kind,  # no result crosses the last link
        num_chips=count,
        link_src=tuple(name for name, keeps in zip(topology.link_src, kept, strict=True) if keeps),
        link_dst=tuple(name for name, keeps in zip(topology.link_dst, kept, strict=True) if keeps),
        link_from=topology.link_from[kept],
        link_to=topology.link_to[kept],
        rate_bytes_per_s=topology.rate_bytes_per_s[kept],
        latency_s=topology.latency_s[kept],
    )
    if part.is_ring:
        return part
    for chip, other in product(range(count), repeat=2):
        if topology.has_route(chip, other) and not part.has_route(chip, other):
            raise TargetError(
                f"the route from chip {chip} to chip {other} of {target.name!r} uses later chips.",
                field="topology",
            )
    return part

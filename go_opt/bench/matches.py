"""A match is one method on one graph with one seed; a record is the result of a match."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from go_opt.bench.rivals import RIVALS, Limits, Outcome, Point
from go_opt.common.suggestion import suggestion
from go_opt.env import Target, parse_target
from go_opt.env.target import PAPER
from go_opt.env.target.toml import target_to_toml
from go_opt.env.zoo import SPLITS, zoo_entries, zoo_entry, zoo_families
from go_opt.errors import InvalidInputError
from go_opt.result import Decide
from go_opt.result_json import finite

ZOO_PREFIX: Final = "zoo:"
OURS: Final[Mapping[str, str | None]] = {"portfolio": None, "portfolio-policy": "default"}
"""The names of the portfolio in the benchmark, with the policy that takes part."""
METHODS: Final = (*RIVALS, *OURS)


@dataclass(frozen=True)
class Match:
    """The conditions of one run; a record is reused if its match is equal."""

    model: str  # as :func:`go_opt.load` takes it
    target: str  # as :func:`go_opt.target` takes it
    method: str
    seed: int
    budget_s: float | None = None
    max_evaluations: int | None = None
    link_scale: float = 1.0
    relays: bool = True
    decide: Decide = "all"

    @property
    def graph(self) -> str:
        """The model as tables name it."""
        return self.model.removeprefix(ZOO_PREFIX)

    @property
    def limits(self) -> Limits:
        return Limits(math.inf if self.budget_s is None else self.budget_s, self.max_evaluations)


@dataclass(frozen=True)
class Record:
    """The result of a method, or the error that ended it."""

    match: Match
    ops: int = 0
    interval_s: float = math.inf  # infinite without a plan
    curve: tuple[Point, ...] = ()
    evaluations: int = 0
    wall_s: float = 0.0
    bound_s: float = 0.0  # proven by the method; a rival's is for the default kernels
    status: str = ""  # of the portfolio's answer
    notes: tuple[str, ...] = ()
    error: str = ""

    @staticmethod
    def of(match: Match, ops: int, outcome: Outcome, status: str = "") -> Record:
        """The record of an outcome."""
        reached = {name: value for name, value in vars(outcome).items() if name != "plan"}
        return Record(match, ops, status=status, **reached)

    @property
    def time_to_best_s(self) -> float:
        """When the best plan was found; infinite without a plan."""
        return self.curve[-1].elapsed_s if self.curve else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Converts to a JSON object; None stands for infinity."""
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "match"}
        curve = [list(point) for point in self.curve]
        return asdict(self.match) | rest | {"interval_s": finite(self.interval_s), "curve": curve}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Record:
        """Inverse of :meth:`to_dict`; raises KeyError or TypeError if ``data`` is not a record."""
        match = Match(**{field.name: data[field.name] for field in fields(Match)})
        rest = {field.name: data[field.name] for field in fields(Record) if field.name != "match"}
        rest["interval_s"] = math.inf if data["interval_s"] is None else float(data["interval_s"])
        rest["curve"] = tuple(Point(*point) for point in data["curve"])
        rest["notes"] = tuple(data["notes"])
        return Record(match, **rest)


def models_named(names: Sequence[str], target: str) -> list[str]:
    """Expands zoo names, ``split:NAME``, ``family:NAME`` and files to models.

    A split or family gives only its graphs made for ``target``, or all if none is. Each model
    appears once, in the given order; the graphs of a split or family are sorted by size.
    """
    return list(dict.fromkeys(model for name in names for model in _models(name, target)))


def _models(name: str, target: str) -> list[str]:
    kind, _, value = name.partition(":")
    if kind == "split" and value not in SPLITS:
        raise InvalidInputError(
            f"the zoo has no split {value!r}; it has {', '.join(SPLITS)}.", field="graphs"
        )
    if kind == "family" and value not in zoo_families():
        hint = suggestion(value, zoo_families())
        raise InvalidInputError(f"the zoo has no family {value!r}{hint}", field="graphs")
    if kind not in ("split", "family"):
        is_file = name.endswith((".onnx", ".json"))
        return [name if is_file else f"{ZOO_PREFIX}{zoo_entry(name.removeprefix(ZOO_PREFIX)).name}"]
    entries = [entry for entry in zoo_entries() if getattr(entry, kind) == value]
    meant = [entry for entry in entries if entry.target == target] or entries
    return [f"{ZOO_PREFIX}{entry.name}" for entry in sorted(meant, key=lambda entry: entry.ops)]


def methods_named(names: str) -> list[str]:
    """Parses a comma-separated list of methods; drops duplicates."""
    methods = list(dict.fromkeys(filter(None, (name.strip() for name in names.split(",")))))
    for method in methods:
        if method not in METHODS:
            raise InvalidInputError(
                f"there is no method {method[:80]!r}; there are {', '.join(METHODS)}.", field="methods"
            )
    if not methods:
        raise InvalidInputError("methods names no method.", field="methods")
    return methods


def with_links_scaled(target: Target, scale: float) -> Target:
    """``target`` with every chip-to-chip link ``scale`` times as fast; host links stay the same."""
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInputError(f"link_scale must be above zero, not {scale}.", field="link_scale")
    if scale == 1:
        return target
    topology = replace(target.topology, rate_bytes_per_s=target.topology.rate_bytes_per_s * scale)
    scaled = f", links x{scale:g}"
    text = target_to_toml(replace(target, name=target.name + scaled, topology=topology))
    plain = PAPER if target.source.endswith(PAPER) else ""  # what the text does not say
    return parse_target(text, target.source.removesuffix(PAPER) + scaled + plain)

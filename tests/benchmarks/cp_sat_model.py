"""The placement of units on a ring as a CP-SAT model.

A placement is a chain of down-sets: ``in[u, d]`` is true if unit u is on chip d or before.

    in[u, d] <= in[u, d + 1],   in[v, d] <= in[u, d]          for every edge (u, v)
    in[u, d] <= in[v, d + 1]                                  under the adjacent rule
    crosses[k, d] >= in[home, d] - in[reader, d]              loads link d
    passes[k, d] >= in[home, d - 1] - in[reader, d]           costs a relay on chip d

The interval is at least the load of every chip, link and host link, overlapped or summed as
in :mod:`go_opt.env.model.analytical`. Weights that do not fit are streamed, in fractions. The
model ignores activation memory and rounds costs down to whole ticks. So its optimum is a lower
bound of the real optimum; the environment evaluates the plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from go_opt.bench.rivals.trial import Problem
from go_opt.common.arrays import IntArray
from go_opt.env.cost.tables import hop_seconds_per_byte
from go_opt.model.graph import INPUT, NO_PRODUCER, WEIGHT
from go_opt.solver import PlacementProblem
from go_opt.solver.problem.problem import NO_SKIP_ALL, NO_SKIP_RULES
from tests.benchmarks.rival_units import UnitTensor, unit_seconds, unit_tensors

_KIB: Final = 1024  # unit of weight sizes

Literal = Any  # a model variable, its negation, True or False


def cp_model() -> Any:
    """The solver's module, which loads when it is used."""
    return import_module("ortools.sat.python.cp_model")


class RingModel:
    """The CP-SAT model of a problem's units; ``seconds_per_tick`` converts its objective to seconds.

    ``check`` is called while the model is built; it raises if no time is left.
    """

    def __init__(
        self,
        problem: Problem,
        units: PlacementProblem,
        seconds_per_tick: float,
        at_most_s: float,
        check: Callable[[], None],
    ) -> None:
        self.model = cp_model().CpModel()
        self.seconds_per_tick = seconds_per_tick
        self._problem, self._units, self._check = problem, units, check
        self._tables = problem.instance.tables
        self._num_chips = units.num_chips
        self._pays = self._tables.pays_transfers[units.chip_kind]
        # [D] and [L] lists of (coefficient, variable): the load of each chip and link.
        self._chip: list[list[tuple[int, Literal]]] = [[] for _ in range(self._num_chips)]
        self._link: list[list[tuple[int, Literal]]] = [[] for _ in range(self._num_chips)]
        self._host_in: list[tuple[int, Literal]] = []
        self.inside = [
            [self.model.new_bool_var(f"in {u} {d}") for d in range(self._num_chips - 1)]
            for u in range(units.num_units)
        ]
        self._add_placement()
        self._add_work()
        tensors = unit_tensors(self._tables, units.unit_of_op)
        self._add_activations(tensors)
        self._add_inputs(tensors)
        self._add_weights(tensors)
        self.interval = self._add_interval(at_most_s)

    def hint(self, placement: IntArray) -> None:
        """Start from ``placement`` [U]."""
        for row, chip in zip(self.inside, placement, strict=True):
            for d, variable in enumerate(row):
                self.model.add_hint(variable, bool(chip <= d))

    def placement(self, value: Any) -> IntArray:
        """[U] chips of a solution; ``value`` maps a variable to its value."""
        return np.array([sum(not value(variable) for variable in row) for row in self.inside], dtype=np.int32)

    def _ticks(self, seconds: float) -> int:
        return int(seconds / self.seconds_per_tick)

    def _in(self, unit: int, chip: int) -> Literal:
        if chip < 0:
            return False
        return True if chip >= self._num_chips - 1 else self.inside[unit][chip]

    def _clause(self, *literals: Literal) -> None:
        """Add the constraint that at least one literal is true."""
        if True not in (literal for literal in literals if isinstance(literal, bool)):
            self.model.add_bool_or([literal for literal in literals if literal is not False])

    def _on(self, terms: list[tuple[int, Literal]], coefficient: int, unit: int, chip: int) -> None:
        """Add terms that sum to ``coefficient`` if the unit is on the chip, else to 0."""
        terms += [(coefficient, self._in(unit, chip)), (-coefficient, self._in(unit, chip - 1))]

    def _add_placement(self) -> None:
        units, chips = self._units, range(self._num_chips)
        sources = np.repeat(np.arange(units.num_units), np.diff(units.successor_ptr)).tolist()
        edges = list(zip(sources, units.successor.tolist(), strict=True))
        for d in chips[:-1]:
            self._check()
            for u in range(units.num_units):
                self._clause(_not(self._in(u, d)), self._in(u, d + 1))
            for u, v in edges:
                self._clause(_not(self._in(v, d)), self._in(u, d))
                if self._problem.is_adjacent:
                    self._clause(_not(self._in(u, d)), self._in(v, d + 1))
        for q, runs in enumerate(units.can_run):
            for d in np.flatnonzero(units.chip_kind == q).tolist():
                for u in np.flatnonzero(~runs).tolist():
                    self._clause(_not(self._in(u, d)), self._in(u, d - 1))
        self._add_no_skip(chips)

    def _add_no_skip(self, chips: range) -> None:
        """A chip may be empty only if all units are on earlier chips, or never, by the rule."""
        rule = self._problem.target.constraints.no_skip
        if rule == "off":
            return
        sinks = np.flatnonzero(np.diff(self._units.successor_ptr) == 0).tolist()
        for d in chips:
            is_done: Literal = False
            if d > 0 and rule != NO_SKIP_RULES[NO_SKIP_ALL]:
                is_done = self.model.new_bool_var(f"done before {d}")
                for u in sinks:
                    self._clause(_not(is_done), self._in(u, d - 1))
            held: list[tuple[int, Literal]] = [(1, is_done)]
            for u in range(self._units.num_units):
                self._on(held, 1, u, d)
            self.model.add(_sum(held) >= 1)

    def _add_work(self) -> None:
        seconds = unit_seconds(self._problem, self._units.unit_of_op)
        for d, kind in enumerate(self._units.chip_kind):
            for u in range(self._units.num_units):
                self._on(self._chip[d], self._ticks(seconds[kind, u]), u, d)
        produced = np.flatnonzero(
            self._tables.tensor_is_output & (self._tables.tensor_producer != NO_PRODUCER)
        )
        for k in produced if not self._tables.overlap else ():
            unit = int(self._units.unit_of_op[self._tables.tensor_producer[k]])
            out = self._ticks(float(self._tables.tensor_bytes[k]) * self._tables.host_out_s_per_byte)
            for d in np.flatnonzero(self._pays).tolist():
                self._on(self._chip[d], out, unit, d)

    def _add_activations(self, tensors: list[UnitTensor]) -> None:
        """Tensors with the same producer and readers share their variables."""
        sizes: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        for tensor in tensors:
            if tensor.home != NO_PRODUCER:
                sizes[tensor.home, tensor.readers].append(tensor.num_bytes)
        hop_s = hop_seconds_per_byte(self._tables)
        for k, ((home, readers), num_bytes) in enumerate(sizes.items()):
            self._check()
            for d in range(self._num_chips - 1):
                crosses = self._crossing(f"crosses {k} {d}", home, d, readers, d)
                load = self._ticks(sum(num_bytes) * float(hop_s[d]))
                self._link[d].append((load, crosses))
                for chip in (d, d + 1) if not self._tables.overlap else ():
                    if self._pays[chip]:
                        self._chip[chip].append((load, crosses))
                if self._problem.forwarding == "relayed" and d > 0:
                    passes = self._crossing(f"passes {k} {d}", home, d - 1, readers, d)
                    self._chip[d].append((self._ticks(self._copy_s(num_bytes, d)), passes))

    def _crossing(self, name: str, home: int, before: int, readers: tuple[int, ...], after: int) -> Literal:
        """True if ``home`` is on chip ``before`` or earlier and some reader is after chip ``after``."""
        crosses = self.model.new_bool_var(name)
        for reader in readers:
            self._clause(crosses, _not(self._in(home, before)), self._in(reader, after))
        return crosses

    def _copy_s(self, num_bytes: list[int], chip: int) -> float:
        kind = self._units.chip_kind[chip]
        overhead_s = float(self._tables.kernel_overhead_s[kind])
        return len(num_bytes) * overhead_s + 2.0 * sum(num_bytes) * float(self._tables.sram_s_per_byte[kind])

    def _add_inputs(self, tensors: list[UnitTensor]) -> None:
        """Without overlap, each chip pays for the inputs it reads; with overlap, inputs are constant."""
        for k, tensor in enumerate(tensors if not self._tables.overlap else ()):
            if tensor.kind != INPUT:
                continue
            load = self._ticks(tensor.num_bytes * self._tables.host_in_s_per_byte)
            for d in np.flatnonzero(self._pays).tolist():
                self._chip[d].append((load, self._is_read(f"input {k}", tensor.readers, d)))

    def _is_read(self, name: str, readers: tuple[int, ...], chip: int) -> Literal:
        """True if some reader is on ``chip``."""
        is_read = self.model.new_bool_var(f"{name} {chip}")
        for reader in readers:
            self._clause(is_read, _not(self._in(reader, chip)), self._in(reader, chip - 1))
        return is_read

    def _add_weights(self, tensors: list[UnitTensor]) -> None:
        """Weights that do not fit are streamed; a partly read weight streams its least read share."""
        weights = [tensor for tensor in tensors if tensor.kind == WEIGHT]
        total = sum(weight.num_bytes for weight in weights)
        for d in range(self._num_chips):
            if total > self._tables.sram_bytes[d]:
                self._add_weights_on(d, weights, total // _KIB)

    def _add_weights_on(self, chip: int, weights: list[UnitTensor], most: int) -> None:
        tick_s = _KIB * self._tables.host_in_s_per_byte
        held: list[tuple[int, Literal]] = []
        streamed = self.model.new_int_var(0, most, f"streamed {chip}")
        streams = [(self._ticks(tick_s), streamed)]
        shed: list[tuple[int, Literal]] = [(1, streamed)]
        for k, weight in enumerate(weights):
            size = weight.num_bytes // _KIB
            if size == 0:
                continue
            is_held = self._is_read(f"weight {k}", weight.readers, chip)
            held.append((size, is_held))
            if weight.touched_bytes < weight.num_bytes:
                partly = self.model.new_int_var(0, size, f"streamed {k} {chip}")
                self.model.add(partly <= size * is_held)
                share = weight.touched_bytes / weight.num_bytes
                streams.append((self._ticks(tick_s * share), partly))
                shed.append((1, partly))
        room = -(-int(self._tables.sram_bytes[chip]) // _KIB)
        self.model.add(_sum(held) - _sum(shed) <= room)
        self._host_in += streams
        if not self._tables.overlap and self._pays[chip]:
            self._chip[chip] += streams

    def _add_interval(self, at_most_s: float) -> Literal:
        tables = self._tables
        is_input = tables.tensor_kind == INPUT
        is_output = tables.tensor_is_output & (tables.tensor_producer != NO_PRODUCER)
        in_s, out_s = (
            float(tables.tensor_bytes[which].sum()) * rate
            for which, rate in (
                (is_input, tables.host_in_s_per_byte),
                (is_output, tables.host_out_s_per_byte),
            )
        )
        least = self._ticks(max(in_s, out_s)) if tables.overlap else 0
        interval = self.model.new_int_var(least, max(least, self._ticks(at_most_s) + 1), "interval")
        for terms in self._chip:
            self.model.add(_sum(terms) <= interval)
        if tables.overlap:
            for terms in self._link[: self._num_chips - 1]:
                self.model.add(_sum(terms) <= interval)
            if self._host_in:
                self.model.add(_sum(self._host_in) + self._ticks(in_s) <= interval)
        self.model.minimize(interval)
        return interval


def _not(literal: Literal) -> Literal:
    return not literal if isinstance(literal, bool) else ~literal


def _sum(terms: list[tuple[int, Literal]]) -> Any:
    constant = sum(coefficient for coefficient, literal in terms if literal is True)
    free = [(coefficient, literal) for coefficient, literal in terms if not isinstance(literal, bool)]
    variables, coefficients = [v for _, v in free], [c for c, _ in free]
    return cp_model().LinearExpr.weighted_sum(variables, coefficients) + constant

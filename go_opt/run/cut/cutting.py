"""The stages of a plan: the ops and relays of each, and its inputs from other stages."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import networkx as nx

from go_opt.env.copies.expanded_tables import plan_tables
from go_opt.env.copies.relays import relay_name, relays_of
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.target import Target
from go_opt.errors import PlanError
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run.cut.reads import Reads


class Relayed(NamedTuple):
    """A tensor that a stage forwards."""

    original: str
    source: str  # as it comes in
    tensor: str  # as it goes out


@dataclass(frozen=True)
class CutStage:
    """The work of one part of a chip (or of all chips of a replicated stage) per inference."""

    chips: tuple[int, ...]
    kernels: tuple[tuple[str, ...], ...]  # in execution order
    relays: tuple[Relayed, ...]
    sources: dict[str, str]  # tensor of the model -> the name under which the stage's ops read it
    makes: tuple[str, ...]  # tensors that its ops and relays write
    compute_s: float

    @property
    def needs(self) -> set[str]:
        """Tensors that its ops and relays read."""
        return {*self.sources.values(), *(relay.source for relay in self.relays)}

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of all ops in execution order."""
        return tuple(op for kernel in self.kernels for op in kernel)


class _Step(NamedTuple):
    """An op or relay of a plan."""

    chip: int
    op: str  # empty for a relay
    relayed: Relayed | None
    sources: dict[str, str]
    makes: tuple[str, ...]


def stages_of_plan(graph: Graph, target: Target, plan: Plan, reads: Reads) -> list[CutStage]:
    """The stages of ``plan`` in an order in which each can run.

    Raises:
      PlanError: an op would run before the producer of a tensor that the plan treats as a constant.
    """
    placed = plan_tables(graph, target, plan)
    steps = _Steps(graph, plan, reads).steps()
    order = placed.order.tolist()
    _check_order([steps[i] for i in order])
    kernel_of = number_kernels(placed.order, placed.fusion_group)
    kernels: list[list[_Step]] = [[] for _ in range(int(kernel_of.max()) + 1)]
    for i in order:
        kernels[kernel_of[i]].append(steps[i])
    chips = [kernel[0].chip for kernel in kernels]
    parts = parts_of(
        chips,
        [[source for step in kernel for source in step.sources.values()] for kernel in kernels],
        [[tensor for step in kernel for tensor in step.makes] for kernel in kernels],
    )
    seconds = kernel_seconds(placed.tables, kernel_of)
    size = dict(zip(placed.placement.tolist(), placed.replication.tolist(), strict=True))
    return [
        _stage(
            [kernels[kernel] for kernel in part.kernels],
            range(part.chip, part.chip + size[part.chip]),
            float(seconds[target.chip_kind[part.chip], part.kernels].sum()),
        )
        for part in parts
    ]


class _Steps:
    """Makes the steps of a plan, numbered as in its tables: ops, relays."""

    def __init__(self, graph: Graph, plan: Plan, reads: Reads) -> None:
        self._graph, self._plan, self._reads = graph, plan, reads
        self._relay_chips: dict[str, list[int]] = {}
        for tensor, chip in zip(*(column.tolist() for column in relays_of(graph, plan)), strict=True):
            self._relay_chips.setdefault(graph.tensor_names[tensor], []).append(chip)

    def steps(self) -> list[_Step]:
        ops = zip(self._graph.op_names, self._plan.placement.tolist(), strict=True)
        relays = [self._relay(tensor, chip) for tensor, chips in self._relay_chips.items() for chip in chips]
        return [*(self._op(name, chip) for name, chip in ops), *relays]

    def _op(self, name: str, chip: int) -> _Step:
        tensors = [str(value.name) for value in self._reads.of_op(name)]
        sources = {tensor: self._relayed(tensor, chip) for tensor in tensors}
        makes = tuple(str(output.name) for output in self._reads.op_node[name].outputs if output.name)
        return _Step(chip, name, None, sources, makes)

    def _relay(self, tensor: str, chip: int) -> _Step:
        relayed = Relayed(tensor, self._relayed(tensor, chip), relay_name(tensor, chip))
        return _Step(chip, "", relayed, {tensor: relayed.source}, (relayed.tensor,))

    def _relayed(self, tensor: str, chip: int) -> str:
        """The last relay before ``chip``, or the tensor itself."""
        before = [relay for relay in self._relay_chips.get(tensor, ()) if relay < chip]
        return relay_name(tensor, before[-1]) if before else tensor


def _stage(kernels: list[list[_Step]], chips: Iterable[int], compute_s: float) -> CutStage:
    steps = [step for kernel in kernels for step in kernel]
    named = (tuple(step.op for step in kernel if step.op) for kernel in kernels)
    sources: dict[str, str] = {}
    for step in steps:
        if step.relayed is None:
            sources |= step.sources
    return CutStage(
        tuple(chips),
        tuple(kernel for kernel in named if kernel),
        tuple(step.relayed for step in steps if step.relayed is not None),
        sources,
        tuple(tensor for step in steps for tensor in step.makes),
        compute_s,
    )


def _check_order(steps: list[_Step]) -> None:
    """Reject ops that run before the producers of their tensors."""
    maker = {tensor: i for i, step in enumerate(steps) for tensor in step.makes}
    for i, step in enumerate(steps):
        late = next((source for source in step.sources.values() if maker.get(source, -1) >= i), None)
        if late is not None:
            raise PlanError(f"op {step.op!r} runs before tensor {late!r} is there, which it reads.")


@dataclass
class Part:
    """Successive kernels of a chip that do not depend on results derived from the part."""

    chip: int
    kernels: list[int] = field(default_factory=list)


def parts_of(
    chips: Sequence[int], needs: Sequence[Sequence[Hashable]], makes: Sequence[Sequence[Hashable]]
) -> list[Part]:
    """Parts in an order in which each can run, as few as the order of the kernels allows.

    A kernel joins the last part of its chip, unless that part would then depend on itself through another
    chip; then it starts a new part. Under acyclic dataflow, each chip is one part.

    Args:
      chips: of each kernel, in execution order.
      needs, makes: the tensors that each kernel reads and writes.
    """
    parts: list[Part] = []
    waits = nx.DiGraph()  # from a part to those that read from it, by number
    last: dict[int, int] = {}
    made_by: dict[Hashable, int] = {}
    for kernel, chip in enumerate(chips):
        sources = {made_by[tensor] for tensor in needs[kernel] if tensor in made_by}
        part = last.get(chip)
        if part is None or any(nx.has_path(waits, part, source) for source in sources - {part}):
            part = last[chip] = len(parts)
            parts.append(Part(chip))
            waits.add_node(part)
        parts[part].kernels.append(kernel)
        waits.add_edges_from((source, part) for source in sources - {part})
        made_by |= dict.fromkeys(makes[kernel], part)
    # Ties are broken by chip.
    order = nx.lexicographical_topological_sort(waits, key=lambda part: (parts[part].chip, part))
    return [parts[part] for part in order]

"""Plans of a prompt and of a step of one network as one plan, and how both pass through chips and links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.env.copies.splits import planned_graph, split_graph
from go_opt.errors import GoOptError, InfeasibleError, InvalidInputError, PlanError
from go_opt.frontends.union.graphs import prefix_of
from go_opt.model.dtypes import costed_dtype, size_bytes
from go_opt.model.graph import INPUT, WEIGHT, Graph
from go_opt.model.plan import Plan, Split
from go_opt.serving.rate.tandem import Passes
from go_opt.solver import Pin
from go_opt.solver.verify.verifier import rules_broken

_PREFIXES: Final = (prefix_of(1, 0), prefix_of(2, 0))
_FEWER: Final = 0.85  # of the sequences in flight, and so on
_NUMBERS: Final = 12


@dataclass(frozen=True, eq=False)
class Case:
    """A prompt and a step, each alone and in one graph."""

    prompt: Graph
    step: Graph
    both: Graph  # with the weights that are the same once
    target: Target

    def __post_init__(self) -> None:
        if self.prompt.states or not self.step.states or self.step.has_scope("model"):
            problem = "--prefill is for a step with states of sequences, and a prompt without"
            raise InvalidInputError(f"{problem}.", field="prefill")

    @cached_property
    def shared(self) -> Mapping[int, int]:
        """Weights of the step, each with that of the prompt that it is in the graph of both."""
        found: dict[int, int] = {}
        for op, name in enumerate(self.step.op_names):
            own = [k for k, _ in self.step.reads_of(op) if self._is_gone(self.step.tensor_names[k])]
            read = self.both.reads_of(self.both.op_index[_PREFIXES[1] + name])
            names = [self.both.tensor_names[k] for k, _ in read]
            others = [name.removeprefix(_PREFIXES[0]) for name in names if name.startswith(_PREFIXES[0])]
            of_prompt = [self.prompt.tensor_index[name] for name in others]
            found.update(zip(_by_size(self.step, own), _by_size(self.prompt, of_prompt), strict=True))
        return found

    def _is_gone(self, tensor: str) -> bool:
        return _PREFIXES[1] + tensor not in self.both.tensor_index

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt: the elements of its largest input over those of the step's."""
        graphs = self.prompt, self.step
        most = [int(one.tensor_elements[one.tensor_kind == INPUT].max(initial=1)) for one in graphs]
        return max(most[0] // most[1], 1)

    @property
    def shared_bytes(self) -> tuple[int, int]:
        """Of the step's weights: those that are the prompt's, and all."""
        sizes = cost_tables(self.step, self.target).tensor_bytes
        all_bytes = int(sizes[self.step.tensor_kind == WEIGHT].sum())
        return int(sizes[list(self.shared)].sum()), all_bytes

    def readers(self, weight: int) -> list[tuple[str, str]]:
        """The ops of step and prompt that read a shared weight, in pairs; none if their numbers differ."""
        step, prompt = self.step.readers_of(weight), self.prompt.readers_of(self.shared[weight])
        if len(step) != len(prompt):
            return []
        return [(self.step.op_names[s], self.prompt.op_names[p]) for s, p in zip(step, prompt, strict=True)]


@dataclass(frozen=True, eq=False)
class Placed:
    """A plan of both, and how prompts and steps pass through it."""

    plan: Plan  # of the graph of both
    metrics: Metrics  # of both once
    prompt_chips: int  # of prompts alone; 0: beside steps
    passes: Passes
    handover_s: float  # of the states of a prompt, on the busiest link


def place(case: Case, prompt: Plan, step: Plan, prompt_chips: int, tokens: float) -> Placed:
    """Both plans as one, with the number of the step's sequences in flight that takes the most tokens.

    More sequences than the step's plan has would not fit; with fewer, chips stream no weights for the room
    that the prompt takes.

    Raises:
      InfeasibleError: they do not fit, or break a rule together.
    """
    whole, found, why = _joined(case, prompt, step), [], ""
    for sequences in sorted(
        {max(round(step.sequences * _FEWER**i), 1) for i in range(_NUMBERS)}, reverse=True
    ):
        plan = _with_sequences(case, whole, sequences)
        metrics = evaluate_plan(planned_graph(case.both, plan), case.target, plan)
        if metrics.valid:
            passes, handover_s = _passes(case, prompt, replace(step, sequences=sequences), metrics)
            found.append(Placed(plan, metrics, prompt_chips, passes, handover_s))
        why = metrics.reason
    if found:
        best = max(found, key=lambda one: one.passes.capacity_per_s(tokens, one.plan.sequences))
        broken = rules_broken(planned_graph(case.both, best.plan), case.target, best.plan)
        if not broken:
            return best
        why = str(broken[0])
    raise InfeasibleError(f"the plans of prompt and step do not go together: {why}.", is_proven=False)


def shifted(case: Case, step: Plan, chips: int) -> Plan:
    """The plan of a step on the package without the first chips."""
    relays = tuple(replace(one, chips=tuple(chip + chips for chip in one.chips)) for one in step.relays)
    return replace(on_target(step, case.target), placement=step.placement + np.int32(chips), relays=relays)


def on_target(plan: Plan, target: Target) -> Plan:
    return replace(plan, target=target.source, target_fingerprint=target.fingerprint)


def prompt_beside(case: Case, step: Plan) -> tuple[Graph, tuple[Split, ...], list[Pin]]:
    """The prompt in the parts of the step's ops, its splits, and ops pinned to where their weights lie."""
    partner = dict(pair for weight in case.shared for pair in case.readers(weight))
    splits: tuple[Split, ...] = ()
    graph = case.prompt
    for op in dict.fromkeys(one.op for one in step.splits if one.op in partner):
        more = tuple(replace(one, op=partner[op]) for one in step.splits if one.op == op)
        try:
            graph, splits = split_graph(case.prompt, (*splits, *more)), (*splits, *more)
        except GoOptError:
            continue  # the prompt's op has no such factor
    on_step = planned_graph(case.step, step)
    chips: dict[int, list[str]] = {}
    for op, other in partner.items():
        for name in on_step.op_names:
            twin = other + name.removeprefix(op)
            if (name == op or name.startswith(f"{op}/part ")) and twin in graph.op_index:
                chips.setdefault(int(step.placement[on_step.op_index[name]]), []).append(twin)
    return graph, splits, [Pin(tuple(dict.fromkeys(ops)), chip) for chip, ops in sorted(chips.items())]


def _by_size(graph: Graph, tensors: list[int]) -> list[int]:
    return sorted(tensors, key=lambda k: (graph.tensor_elements[k], k))


def _joined(case: Case, *plans: Plan) -> Plan:
    """The ops of the prompt, then those of the step, each as in its plan."""
    splits = tuple(
        replace(one, op=prefix + one.op)
        for prefix, plan in zip(_PREFIXES, plans, strict=True)
        for one in plan.splits
    )
    relays = tuple(
        replace(one, tensor=prefix + one.tensor)
        for prefix, plan in zip(_PREFIXES, plans, strict=True)
        for one in plan.relays
    )
    if plans[1].host_states or any(plan.forwards for plan in plans):
        raise InfeasibleError("plans that keep states on the host are not joined.", is_proven=False)
    graph = split_graph(case.both, splits)
    placement, group = np.full(graph.num_ops, -1), np.full(graph.num_ops, -1)
    orders = []
    for alone, prefix, plan in zip((case.prompt, case.step), _PREFIXES, plans, strict=True):
        names = planned_graph(alone, plan).op_names
        if any(prefix + name not in graph.op_index for name in names):
            raise PlanError("the ops of both are not those of each alone.", field="splits")
        ops = np.array([graph.op_index[prefix + name] for name in names])
        placement[ops] = plan.placement
        group[ops] = plan.fusion_group + group.max() + 1
        orders.append(ops[plan.order])
    plan = Plan.create(
        graph,
        case.target.source,
        case.target.fingerprint,
        placement=placement,
        order=np.concatenate(orders),
        fusion_group=group,
        provenance="prompt and step",
    )
    return replace(
        plan,
        splits=splits,
        relays=relays,
        bindings=case.both.bindings,
        precision=case.both.precision,
        model=case.both.name,
    )


def _with_sequences(case: Case, plan: Plan, sequences: int) -> Plan:
    sized = replace(plan, sequences=sequences, graph_fingerprint="")
    return replace(sized, graph_fingerprint=planned_graph(case.both, sized).fingerprint)


def _passes(case: Case, prompt: Plan, step: Plan, both: Metrics) -> tuple[Passes, float]:
    graphs = planned_graph(case.prompt, prompt), planned_graph(case.step, step)
    alone = [
        evaluate_plan(graph, case.target, plan) for graph, plan in zip(graphs, (prompt, step), strict=True)
    ]
    rows = [_loads_s(one, 0.0) for one in alone[:1]] + [
        _loads_s(alone[1], alone[1].latency_s / step.sequences)
    ]
    # Weights of one that find no room beside the other are sent for each: charged to both.
    streamed_s = np.maximum(_vector(both) - _vector(alone[0]) - _vector(alone[1]), 0.0)
    given = _handover_s(case, graphs, (prompt, step))
    holds_s = np.array([rows[0] + streamed_s, given, rows[1] + streamed_s])
    latencies_s = [one.latency_s + streamed_s.max() for one in alone]
    way = list(_way(case.target, np.concatenate([one.placement[one.order] for one in (prompt, step)])))
    passes = Passes.of(
        holds_s[:, way],
        np.array([latencies_s[0], given.max(), latencies_s[1]]),
        np.array(way) >= case.target.num_chips,
    )
    return passes, float(given.max())


def _vector(metrics: Metrics) -> FloatArray:
    return np.concatenate([metrics.compute_s, metrics.link_s])


def _loads_s(metrics: Metrics, waiting_s: float) -> FloatArray:
    """How long each chip and link is busy: the longest is the interval, unless sequences wait as long."""
    loads_s = _vector(metrics)
    is_longer = metrics.interval_s > waiting_s * (1.0 + 1e-9)
    return loads_s * (max(metrics.interval_s / loads_s.max(), 1.0) if is_longer else 1.0)


def _way(target: Target, visited: np.ndarray) -> Iterator[int]:
    """Places in a vector of chips, links, host in and host out, in the order in which passes come to them."""
    chips, source = target.num_chips, target.topology.link_from
    others = range(chips)
    first = others if target.topology.is_ring else [*visited.tolist(), *others]
    yield chips + len(source)
    yield from (chips + int(link) for link in np.flatnonzero(source < 0))
    for chip in dict.fromkeys(first):
        yield chip
        yield from (chips + int(link) for link in np.flatnonzero(source == chip))
    yield chips + len(source) + 1


def _handover_s(case: Case, graphs: tuple[Graph, Graph], plans: tuple[Plan, Plan]) -> FloatArray:
    """What the states of a prompt load each link, from where the prompt has the weights before them."""
    target, step = case.target, case.step
    links = target.topology.num_links
    loads = np.zeros(target.num_chips + links + 2)
    twins = sorted((pair, min(step.readers_of(w))) for w in case.shared for pair in case.readers(w)[:1])
    dtypes = costed_dtype(step.tensor_dtype, target.native_dtype, step.precision)
    for state in step.states:
        readers = step.readers_of(state.read)
        before = [(op, pair) for pair, op in twins if readers and op <= min(readers)]
        if not before:
            continue
        source = _chip_of(graphs[0], plans[0], max(before)[1][1])
        reader = _chip_of(graphs[1], plans[1], step.op_names[min(readers)])
        held = int(step.tensor_elements[state.read])
        written = min(state.written * case.prompt_tokens, held) if state.in_place else held
        sent_bytes = int(size_bytes(np.array([written]), dtypes[[state.read]])[0])
        for link, rate in _route(target, source, reader):
            loads[target.num_chips + link] += sent_bytes / rate
    return loads


def _route(target: Target, source: int, destination: int) -> list[tuple[int, float]]:
    """The links from one chip to another with their rates; by the host where there is no route."""
    topology = target.topology
    if not topology.has_route(source, destination):
        links = topology.num_links
        return [(links + 1, target.host_out_bytes_per_s), (links, target.host_in_bytes_per_s)]
    return [(link, float(topology.rate_bytes_per_s[link])) for link in topology.route(source, destination)]


def _chip_of(graph: Graph, plan: Plan, op: str) -> int:
    """The chip of an op, or of the first of its parts."""
    at = graph.op_index.get(op)
    if at is None:
        at = next(i for i, name in enumerate(graph.op_names) if name.startswith(f"{op}/"))
    return int(plan.placement[at])

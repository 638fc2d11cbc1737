"""Prompts beside steps of decoding on all chips, or apart on chips of their own: which is better for a rate.

Both are plans of one graph, that of the prompt and the step with their weights in common. *Beside*, the
prompt's ops lie where the step has their weights, which a chip then holds once. *Apart*, prompts have the
first chips and steps the others: none waits for the other, but weights lie there twice, and the states of
each prompt go over links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from go_opt.common.arrays import FloatArray
from go_opt.common.units import format_bytes, format_duration
from go_opt.env import Metrics, Target, cost_tables, evaluate_plan
from go_opt.env.copies.splits import planned_graph, split_graph
from go_opt.env.target import first_chips
from go_opt.errors import GoOptError, InfeasibleError, InvalidInputError, PlanError
from go_opt.frontends.union.graphs import prefix_of
from go_opt.model.codecs.plan_json import plan_to_dict, save_plan
from go_opt.model.dtypes import costed_dtype, size_bytes
from go_opt.model.graph import INPUT, WEIGHT, Graph
from go_opt.model.plan import Plan, Split
from go_opt.result import Request
from go_opt.serving.rate.planning import MEAN_TOKENS, RateRequest, SearchOf, bound_s, search_here
from go_opt.serving.rate.queueing import Answered, Passes, simulated
from go_opt.solver import Pin
from go_opt.solver.verify.verifier import rules_broken

_PREFIXES: Final = (prefix_of(1, 0), prefix_of(2, 0))
_FEWER: Final = 0.85  # of the sequences in flight, and so on
_NUMBERS: Final = 12
_SHARES: Final = (0.5, 1.0, 2.0)  # chips of prompts apart, over those by their share of the work


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
class Way:
    """A plan of both, how prompts and steps pass through it, and what was simulated of that."""

    plan: Plan  # of the graph of both
    metrics: Metrics  # of both once
    prompt_chips: int  # of prompts alone; 0: beside steps
    passes: Passes
    handover_s: float  # of the states of a prompt, on the busiest link
    capacity_per_s: float  # tokens
    answered: Mapping[str, Answered] = field(default_factory=dict)  # by process of arrivals, once simulated

    def is_in_time(self, asked: RateRequest) -> bool:
        """Whether it takes the rate, with first tokens and times per token within the limit."""
        slowest_s = max(max(one.first_s, one.token_s) for one in self.answered.values())
        return self.capacity_per_s >= asked.rate_per_s and slowest_s <= asked.limit_s

    @property
    def last_s(self) -> float:
        """The p99 until the last token, of the slower process."""
        return max(one.last_s for one in self.answered.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "capacity_per_s": self.capacity_per_s,
            "prompt_chips": self.prompt_chips,
            "sequences": self.plan.sequences,
            "handover_s": self.handover_s,
            "p99_s": {name: vars(one) for name, one in self.answered.items()},
        }

    def lines(self, name: str) -> Iterator[str]:
        chips = f", prompts on {self.prompt_chips} chips" if self.prompt_chips else ""
        most = f"at most {self.capacity_per_s:,.4g} tokens/s"
        yield f"{name:11} {most} with {self.plan.sequences} sequences in flight{chips}"
        if self.handover_s:
            yield f"            {format_duration(self.handover_s)} to send the states of a prompt"
        for process, one in self.answered.items():
            first, each = format_duration(one.first_s), format_duration(one.token_s)
            took = f"first token {first}, per token {each}, last {format_duration(one.last_s)}"
            yield f"            p99 with {process} arrivals: {took}"


def place(case: Case, prompt: Plan, step: Plan, prompt_chips: int, tokens: float) -> Way:
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
            per_s = tokens * passes.capacity_per_s(tokens, sequences)
            found.append(Way(plan, metrics, prompt_chips, passes, handover_s, per_s))
        why = metrics.reason
    if found:
        best = max(found, key=lambda one: one.capacity_per_s)
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


@dataclass(frozen=True, eq=False)
class Prefill:
    """The best way beside and the best apart, where plans were found."""

    case: Case
    asked: RateRequest
    tokens: float
    bound_per_s: float  # tokens: no plans of either way take more
    beside: Way | None
    apart: Way | None
    claims: Mapping[str, Any]  # of the plan's file

    @property
    def best(self) -> Way:
        """Of those in time the one whose last tokens are there first.

        Raises:
          InfeasibleError: none is in time.
        """
        ways = [way for way in (self.beside, self.apart) if way is not None]
        found = [way for way in ways if way.is_in_time(self.asked)]
        if found:
            return min(found, key=lambda way: way.last_s)
        most = max((way.capacity_per_s for way in ways), default=0.0)
        rate = f"{self.asked.rate_per_s:g} tokens a second on {self.case.target.num_chips} chips"
        raise InfeasibleError(
            f"no plan with prompts beside steps or apart serves {rate} in time: the best takes {most:.4g}/s.",
            is_proven=self.asked.rate_per_s > self.bound_per_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``--json``: what was simulated, and the plan of both."""
        shared, weights = self.case.shared_bytes
        best = self.best
        return {
            "model": self.case.both.name,
            "target": self.case.target.name,
            "serving": {
                "rate_per_s": self.asked.rate_per_s,
                "tokens_per_sequence": self.tokens,
                "prompt_tokens": self.case.prompt_tokens,
                "weight_bytes": weights,
                "shared_weight_bytes": shared,
                "bound_per_s": self.bound_per_s,
                "best": "apart" if best is self.apart else "beside",
                "beside": self.beside and self.beside.to_dict(),
                "apart": self.apart and self.apart.to_dict(),
            },
            "plan": plan_to_dict(best.plan),
        }

    def save(self, path: Path) -> None:
        """Writes the plan of the better way, which is one of the graph of both."""
        save_plan(self.best.plan, path, self.claims)

    def lines(self) -> Iterator[str]:
        shared, weights = self.case.shared_bytes
        sizes = f"{format_bytes(shared)} of {format_bytes(weights)} of weights"
        yield f"weights     {sizes} of the step are those of the prompt"
        yield f"bound       {self.bound_per_s:,.4g} tokens/s: no plans of prompt and step take more"
        for name, way in (("beside", self.beside), ("apart", self.apart)):
            yield from [f"{name:11} no plan found"] if way is None else way.lines(name)
        best, is_apart = self.best, self.best is self.apart
        where = f"apart, on {best.prompt_chips} chips" if is_apart else "beside steps, on all chips"
        yield f"best        prompts {where}"


def plan_prefill(
    prompt: Graph,
    step: Graph,
    both: Graph,
    target: Target,
    request: Request,
    asked: RateRequest,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    search: SearchOf | None = None,
    claims: Mapping[str, Any] = MappingProxyType({}),
) -> Prefill:
    """Prompts beside steps and apart; the budget of ``request`` is for each of at most eight searches.

    Args:
      both: prompt and step as one graph, with the weights that are the same once.
      search: for each plan; by default in this process.
      claims: of the plan's file, as of measured costs.
    """
    case = Case(prompt, step, both, target)

    find, tokens = search or search_here(should_stop), asked.tokens or MEAN_TOKENS
    # The chips of replicated stages would have to be those of the other plan, too.
    own = replace(request, replication=False, rewrite=False, start=None)
    of_prompt = replace(own, sequences=None)
    work_s = (
        bound_s(prompt, target, of_prompt, target.num_chips),
        (tokens - 1.0) * bound_s(step, target, own, target.num_chips),
    )

    def way(prompts: Plan, steps: Plan, prompt_chips: int) -> Way:
        found, per_s = place(case, prompts, steps, prompt_chips, tokens), asked.rate_per_s / tokens
        places = found.plan.sequences
        return replace(found, answered=simulated(found.passes, places, per_s, tokens, request.seed))

    beside: list[Way] = []
    with suppress(InfeasibleError, PlanError):
        steps = on_target(find(step, target, own).plan, target)
        graph, splits, pins = prompt_beside(case, steps)
        pinned = replace(of_prompt, constraints=tuple(pins), splits=not splits)
        prompts = on_target(find(graph, target, pinned).plan, target)
        prompts = replace(prompts, splits=(*splits, *prompts.splits))
        beside.append(way(prompts, steps, 0))
    apart: list[Way] = []
    share = target.num_chips * work_s[0] / sum(work_s)
    for chips in sorted({min(max(round(share * of), 1), target.num_chips - 1) for of in _SHARES}):
        if should_stop():
            break
        with suppress(InfeasibleError, PlanError):
            prompts = on_target(find(prompt, first_chips(target, chips), of_prompt).plan, target)
            rest = find(step, first_chips(target, target.num_chips - chips), own).plan
            used = int(prompts.placement.max()) + 1
            apart.append(way(prompts, shifted(case, rest, used), used))
    return Prefill(
        case, asked, tokens, tokens / max(work_s), _better(beside, asked), _better(apart, asked), claims
    )


def _better(ways: list[Way], asked: RateRequest) -> Way | None:
    return min(ways, key=lambda way: (not way.is_in_time(asked), way.last_s), default=None)

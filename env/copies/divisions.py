"""Along which factors ops can be divided, and where the parts of each op end.

Any parallel factor, or one that an image is read along through windows, divides an op into parts that write
pieces of its results; a reduction divides it into parts that write partial results, which are added. Ops
that are divided alike read each other's parts, if the cuts of the tensor between them have the same period:
columns pass through element-wise ops to a product that divides its sums (Megatron-LM: Shoeybi et al., 2019),
heads through attention, rows through an image model. Parts are *skewed*: the same part of a reader needs
nothing of the next part, so that halos pass from a part to later ones and no element is computed twice
(skewed tiling of loops: Wolf and Lam, PLDI 1991).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Final, NamedTuple

import numpy as np

from go_opt.common.arrays import BoolArray, LongArray
from go_opt.env.copies.pieces import Cut, Piece, window_end
from go_opt.errors import PlanError
from go_opt.model.graph import ACTIVATION, MATRIX, NO_PRODUCER, WEIGHT, Graph, OpRule, State
from go_opt.model.plan import Split
from go_opt.model.rule import Access, Affine, Place, Rule, multiplicands, places

# Ops whose partial results are added, or joined by another op.
JOINED_BY: Final[Mapping[str, str]] = {
    "Conv": "Add", "Gemm": "Add", "MatMul": "Add", "ReduceMax": "Max", "ReduceMin": "Min", "ReduceSum": "Add",
    "ScatterND": "Add",
}  # fmt: skip
_BIASED: Final = ("Conv", "Gemm")  # what others read beside the operands of a product may be a scale
_WINDOWED: Final = ("AveragePool", "Conv", "MaxPool")  # whose padding can be that of a part
_SIZED: Final = ("Resize", "Upsample")  # their arguments are sizes of the whole result
COPIES: Final = -1  # in the place of a factor: each part computes all of the op
MOST_COPIES: Final = 1024
# Factors that an attribute counts, by the letters of their names, where parts would be another op.
_COUNTED: Final[Mapping[str, str]] = {"DepthToSpace": "b", "SpaceToDepth": "b"}


class _Lie(NamedTuple):
    """Where a factor lies in a tensor of an op, maybe read through a window."""

    tensor: int
    operand: int  # its number among those of the op; -1: a result
    place: Place

    @property
    def period(self) -> int:
        return self.place.size * self.place.behind


class Division(NamedTuple):
    """One factor of an op along which it is divided."""

    op: int
    factor: int  # or COPIES
    parts: int
    joined: bool = True  # False: parts of its readers that are divided alike end with its parts


@lru_cache(maxsize=16)
def _lies(graph: Graph) -> tuple[Mapping[int, Sequence[_Lie]], ...]:
    """For each op [N], where each of its factors lies; nothing of ops without a rule."""
    found: list[Mapping[int, Sequence[_Lie]]] = []
    for op in range(graph.num_ops):
        row, of_op = graph.rule_of(op), dict[int, list[_Lie]]()
        if row is not None:
            operands = zip(row.operands, row.rule.operands, strict=True)
            tensors = [(k, i, access) for i, (k, access) in enumerate(operands)]
            tensors += [(k, -1, access) for k, access in zip(row.results, row.rule.results, strict=True)]
            for k, operand, access in tensors:
                for place in places(row.rule, access):
                    piece = place.piece
                    factor = piece.factor if isinstance(piece, Affine) else piece
                    of_op.setdefault(factor, []).append(_Lie(k, operand, place))
        found.append(of_op)
    return tuple(found)


def _lies_in(graph: Graph, op: int, factor: int, tensor: int) -> list[_Lie]:
    return [lie for lie in _lies(graph)[op].get(factor, ()) if lie.tensor == tensor]


def _lies_read(graph: Graph, op: int, factor: int) -> list[_Lie]:
    return [lie for lie in _lies(graph)[op].get(factor, ()) if lie.operand >= 0]


def period_in(graph: Graph, op: int, factor: int, tensor: int) -> int:
    """The period of cuts along a factor in a tensor of an op; 0 if not all its operands are cut like that."""
    row, found = graph.rule_of(op), _lies_in(graph, op, factor, tensor)
    number = row.operands.count(tensor) if row is not None else 0
    is_cut = len(found) == max(number, 1) and len({lie.period for lie in found}) == 1
    return found[0].period if is_cut else 0


@lru_cache(maxsize=16)
def divisible_factors(graph: Graph, *, with_states: bool = True) -> tuple[tuple[int, ...], ...]:
    """For each op [N], the factors along which it can be divided, with each state that it touches.

    Args:
      with_states: False: each part may have the states to itself.
    """
    found = [
        ()
        if (row := graph.rule_of(op)) is None or graph.measured_of(op) or graph.op_types[op] in _SIZED
        else tuple(i for i in range(len(row.rule.factors)) if _can_be_divided(graph, op, row, i))
        for op in range(graph.num_ops)
    ]
    before: list[tuple[int, ...]] = []
    while (
        with_states and before != found
    ):  # what one op cannot do, others that touch its states cannot do either
        before = found.copy()
        open_periods = {
            state: set[int].intersection(
                *(
                    {state_period(graph, op, i, state) for i in found[op]}
                    for op in graph.readers_of(state.read)
                )
            )
            for state in graph.states
            if graph.readers_of(state.read)
        }
        for op, states in touched_states(graph).items():
            periods = [{i: state_period(graph, op, i, one) for i in found[op]} for one in states]
            found[op] = tuple(
                i
                for i in found[op]
                if all(
                    of[i] > 0 and of[i] in open_periods[one] for of, one in zip(periods, states, strict=True)
                )
            )
    return tuple(found)


@lru_cache(maxsize=16)
def touched_states(graph: Graph) -> Mapping[int, Sequence[State]]:
    """The states that each op touches; ops that touch none are left out."""
    found: dict[int, list[State]] = {}
    for state in graph.states:
        for op in graph.readers_of(state.read):
            found.setdefault(op, []).append(state)
    return found


def state_period(graph: Graph, op: int, factor: int, state: State) -> int:
    """The period in the old value of the cuts along a factor of an op that touches a state.

    0 if some operand or result that is the state is not cut, or the cuts of old and next value differ.
    """
    if factor == COPIES:
        return 0
    row, of_next = graph.known_rule_of(op), next_periods(graph, state)
    read, following = (_lies_in(graph, op, factor, k) for k in (state.read, state.next))
    number = row.operands.count(state.read)
    if state.next != state.read:
        number += row.operands.count(state.next) + row.results.count(state.next)
    else:
        following = []
    lies = [*read, *following]
    periods = {lie.period for lie in read} | {of_next.get(lie.period, 0) for lie in following}
    is_cut = len(lies) == number and not any(isinstance(lie.place.piece, Affine) for lie in lies)
    return periods.pop() if is_cut and len(periods) == 1 else 0


@lru_cache(maxsize=1024)
def next_periods(graph: Graph, state: State) -> Mapping[int, int]:
    """For periods of cuts of the next value of a state, that of the same cuts of the old value.

    They are the same if both have the same size; else the op that computes the next value says it.
    """
    writer = int(graph.tensor_producer[state.next])
    row = graph.rule_of(writer) if writer != NO_PRODUCER else None
    if graph.tensor_elements[state.next] == graph.tensor_elements[state.read]:
        ops = graph.readers_of(state.read)
        lies = (lie for op in ops for of in _lies(graph)[op].values() for lie in of)
        return {lie.period: lie.period for lie in lies if lie.tensor in (state.read, state.next)}
    found: dict[int, int] = {}
    for factor in range(len(row.rule.factors) if row is not None else 0):
        for old in _lies_in(graph, writer, factor, state.read):
            for new in _lies_in(graph, writer, factor, state.next):
                if old.place.blocks == new.place.blocks or old.place.behind == new.place.behind:
                    found[new.period] = old.period
    return found


def _can_be_divided(graph: Graph, op: int, row: OpRule, factor: int) -> bool:
    rule, op_type = row.rule, graph.op_types[op]
    kind = rule.factors[factor].kind
    if kind == "whole" or not row.results or rule.factors[factor].name[0] in _COUNTED.get(op_type, ""):
        return False
    read = _lies_read(graph, op, factor)
    if not read or any(_is_window(access, factor) for access in rule.operands):
        return False
    pieces = [lie.place.piece for lie in read if isinstance(lie.place.piece, Affine)]
    if pieces and (op_type not in _WINDOWED or any(piece.before < 0 for piece in pieces)):
        return False
    return kind != "reduction" or _is_sum(graph, op, row, {lie.operand for lie in read})


def _is_sum(graph: Graph, op: int, row: OpRule, divided: set[int]) -> bool:
    """Whether the results of an op are sums of those of its parts, which divide some of its operands."""
    op_type, multiplied = graph.op_types[op], multiplicands(row.rule)
    if op_type not in JOINED_BY or len(row.results) > 1:
        return False
    is_product = divided.issuperset(multiplied) and (
        len(multiplied) == len(row.rule.operands) or op_type in _BIASED
    )
    return graph.op_class[op] != MATRIX or (len(multiplied) == 2 and is_product)


def _is_window(access: Access, factor: int) -> bool:
    return any(isinstance(one, Affine) and one.window == factor for dimension in access for one in dimension)


def old_piece(graph: Graph, state: State, piece: Piece) -> Piece:
    """The piece of a state whose next value is ``piece`` of the state's next value."""
    of_next, cuts = next_periods(graph, state), list[Cut]()
    for cut in piece:
        period = of_next[cut.period]
        cuts.append(Cut(period, cut.start * period // cut.period, cut.stop * period // cut.period))
    return tuple(sorted(cuts, reverse=True))


def divisions_of(graph: Graph, splits: Sequence[Split]) -> dict[int, list[Division]]:
    """The divisions of each op that ``splits`` name, those that are added last.

    Raises:
      PlanError: an op is not in the graph, or cannot be divided like that; the message names it.
    """
    found: dict[int, list[Division]] = {}
    for split in splits:
        op = graph.op_index.get(split.op)
        if op is None:
            raise PlanError(f"splits: the graph has no op {split.op!r}.", field="splits")
        divisions = found.setdefault(op, [])
        one = Division(op, _factor_of(graph, op, split), split.parts, split.joined)
        if any(other.factor in (one.factor, COPIES) or one.factor == COPIES for other in divisions):
            raise PlanError(f"splits: op {split.op!r} is split twice along {split.factor!r}.", field="splits")
        divisions.append(one)
    for split in splits:
        if split.collective and len(found[graph.op_index[split.op]]) > 1:
            message = f"splits: op {split.op!r} has a collective, so it must be split only once."
            raise PlanError(message, field="splits")
    for divisions in found.values():
        if len(divisions) > 1:
            factors = graph.known_rule_of(divisions[0].op).rule.factors
            divisions.sort(key=lambda one: factors[one.factor].kind == "reduction")
    return found


def _factor_of(graph: Graph, op: int, split: Split) -> int:
    """The factor along which a split divides an op, or COPIES."""
    where, row = f"splits: op {split.op!r}", graph.rule_of(op)
    if not split.factor:
        if not 2 <= split.parts <= MOST_COPIES or not split.joined or split.collective:
            message = f"{where} has 2 to {MOST_COPIES} copies, without a collective, not {split.parts}."
            raise PlanError(message, field="splits")
        return COPIES
    factors = row.rule.factors if row is not None else ()
    factor = next((i for i, one in enumerate(factors) if one.name == split.factor), None)
    if factor is None or factor not in divisible_factors(graph, with_states=False)[op]:
        raise PlanError(f"{where} cannot be split along {split.factor!r}.", field="splits")
    size = factors[factor].size
    if not 2 <= split.parts <= size:
        message = f"{where} has {size} steps along {split.factor!r} for {split.parts} parts."
        raise PlanError(message, field="splits")
    if factors[factor].kind == "reduction" and not split.joined:
        raise PlanError(f"{where} has partial results, which must be joined.", field="splits")
    return factor


def copied_states(graph: Graph, divisions: Mapping[int, Sequence[Division]]) -> dict[State, int]:
    """The states of which each part of the ops that touch them has a copy of its own: how many copies.

    That is where all these ops have as many parts, and not all divide the state: replicas of a training step
    have the weights each, and update them alike.

    Raises:
      PlanError: an op divides a state, or copies it, that another one does not treat alike.
    """
    found: dict[State, int] = {}
    for state in _states_of(graph, divisions):
        ops = graph.readers_of(state.read)
        of_ops = [divisions.get(op, ()) for op in ops]
        cuts = [{(state_period(graph, one.op, one.factor, state), one.parts) for one in of} for of in of_ops]
        if all(cut == cuts[0] and all(period for period, _ in cut) for cut in cuts):
            continue
        parts = {of[0].parts if len(of) == 1 else 0 for of in of_ops}
        if len(parts) == 1 and parts != {0} and state.scope == "model":
            found[state] = parts.pop()
            continue
        other = next((op for op, cut in zip(ops, cuts, strict=True) if cut != cuts[0]), ops[0])
        split, left = (ops[0], other) if len(cuts[0]) >= len(cuts[ops.index(other)]) else (other, ops[0])
        raise PlanError(
            f"splits: op {graph.op_names[split]!r} divides the state "
            f"{graph.tensor_names[state.read]!r}, but op {graph.op_names[left]!r}, which touches it as "
            "well, is not split in the same way.",
            field="splits",
        )
    return found


def _states_of(graph: Graph, divisions: Mapping[int, Sequence[Division]]) -> Iterable[State]:
    """The states that divided ops touch."""
    return dict.fromkeys(state for op in divisions for state in touched_states(graph).get(op, ()))


def stops_of(graph: Graph, divisions: Mapping[int, Sequence[Division]]) -> dict[Division, list[int]]:
    """Where the parts of each division end (exclusive), in steps of its factor.

    Divisions that read each other's parts, which are not joined, or divide the same state, end together: no
    part needs anything of the next part, and the parts have equal shares of the work.

    Raises:
      PlanError: an op has too few steps for its parts, or a part would read padding alone; or an op divides a
        state that another one does not divide alike.
    """
    readers = {one: _part_readers(graph, one, divisions) for of_op in divisions.values() for one in of_op
               if one.factor != COPIES}  # fmt: skip
    mates = _mates(graph, divisions, copied_states(graph, divisions))
    stops: dict[Division, list[int]] = {}
    for group in _groups(readers, mates):
        ends = _balanced(graph, group, readers, mates)
        if ends is None:
            name = graph.op_names[group[0].op]
            message = f"splits: op {name!r} has too few steps for {group[0].parts} parts."
            raise PlanError(message, field="splits")
        stops |= ends
    for one, found in stops.items():
        if _reads_padding(graph, one, found):
            message = f"splits: op {graph.op_names[one.op]!r} would have a part that reads padding alone."
            raise PlanError(message, field="splits")
    return stops


def _reads_padding(graph: Graph, of: Division, stops: Sequence[int]) -> bool:
    """Whether the first part ends before what is no padding begins, or the last one begins behind its end."""
    rule = graph.known_rule_of(of.op).rule
    pieces = (lie.place.piece for lie in _lies_read(graph, of.op, of.factor))
    return any(
        window_end(rule, piece, stops[0]) <= 0 or stops[-2] * piece.stride - piece.before >= piece.size
        for piece in pieces
        if isinstance(piece, Affine)
    )


def _part_readers(
    graph: Graph, of: Division, divisions: Mapping[int, Sequence[Division]]
) -> list[tuple[Division, int]]:
    """The divisions that read the parts of a division, each with the tensor."""
    if of.joined:
        return []
    return [
        (one, k)
        for k in graph.outputs_of(of.op)
        for reader in graph.readers_of(k)
        for one in divisions.get(reader, ())
        if one.factor != COPIES
        and one.parts == of.parts
        and period_in(graph, one.op, one.factor, k) == period_in(graph, of.op, of.factor, k) > 0
    ]


def _mates(
    graph: Graph, divisions: Mapping[int, Sequence[Division]], copied: Collection[State]
) -> Mapping[Division, Sequence[Division]]:
    """For each division of a state, those of other ops that divide it alike."""
    found: dict[Division, list[Division]] = {}
    for state in (one for one in _states_of(graph, divisions) if one not in copied):
        alike: dict[int, list[Division]] = {}
        for one in (one for op in graph.readers_of(state.read) for one in divisions.get(op, ())):
            alike.setdefault(state_period(graph, one.op, one.factor, state), []).append(one)
        for group in alike.values():
            for one in group:
                found.setdefault(one, []).extend(mate for mate in group if mate != one)
    return found


def _groups(
    readers: Mapping[Division, Sequence[tuple[Division, int]]], mates: Mapping[Division, Sequence[Division]]
) -> Iterable[list[Division]]:
    """Groups of divisions that parts or states connect, each in topological order."""
    group_of = {one: [one] for one in readers}
    for one, found in readers.items():
        for connected in (*(reader for reader, _ in found), *mates.get(one, ())):
            mine, other = group_of[one], group_of[connected]
            if mine is not other:
                mine += other
                group_of |= dict.fromkeys(other, mine)
    return map(sorted, {id(group): group for group in group_of.values()}.values())


def _balanced(
    graph: Graph,
    group: list[Division],
    readers: Mapping[Division, Sequence[tuple[Division, int]]],
    mates: Mapping[Division, Sequence[Division]],
) -> dict[Division, list[int]] | None:
    """Stops that give the parts equal FLOPs, as far as the steps of the last ops allow; None without any."""
    parts = group[0].parts
    number = {one: graph.known_rule_of(one.op).rule.factors[one.factor].size for one in group}
    least = {one: 2 if _may_be_view(graph, one) else 1 for one in group}
    if len(group) == 1 and least[group[0]] == 1:
        sizes = split_sizes(number[group[0]], parts)
        return {group[0]: np.cumsum(sizes).tolist()} if sizes[-1] > 0 else None
    finest = max(number[one] for one in group if not readers[one])
    share = np.arange(1, finest) / finest
    stop: dict[Division, LongArray] = {}  # [shares] of each division
    work, all_work = np.zeros(len(share)), 0.0
    is_open: BoolArray = np.ones(len(share), np.bool_)
    for one in reversed(group):
        steps = np.rint(share * number[one]).astype(np.int64)
        for i, (reader, k) in enumerate(readers[one]):
            needed = _needed(graph, reader, k, stop[reader])
            unit = _lies_in(graph, one.op, one.factor, k)[0].place.behind
            is_open &= needed % unit == 0
            steps = needed // unit if i == 0 else np.maximum(steps, needed // unit)
        for i, mate in enumerate(mate for mate in mates.get(one, ()) if mate in stop):
            ends = stop[mate] * number[one]
            steps = ends // number[mate] if i == 0 and not readers[one] else steps
            is_open &= steps * number[mate] == ends
        stop[one] = steps
        is_open &= (steps >= least[one]) & (steps <= number[one] - least[one])
        work += graph.op_flops[one.op] * steps / number[one]
        all_work += graph.op_flops[one.op]
    chosen: list[int] = []
    for part in range(1, parts):
        far = np.abs(work - all_work * part / parts)
        for one in group if chosen else ():
            is_open &= stop[one] >= stop[one][chosen[-1]] + least[one]
        if not is_open.any():
            return None
        chosen.append(int(np.argmin(np.where(is_open, far, np.inf))))
    return {one: [*stop[one][chosen].tolist(), number[one]] for one in group}


def _may_be_view(graph: Graph, one: Division) -> bool:
    """Whether a part with one step only names its operand anew: a Transpose that moves nothing else."""
    if graph.op_types[one.op] != "Transpose":
        return False
    rule = graph.known_rule_of(one.op).rule
    read, written = (
        [place.piece for place in places(rule, access) if place.piece != one.factor]
        for access in (rule.operands[0], rule.results[0])
    )
    return read == written


def _needed(graph: Graph, one: Division, tensor: int, stop: LongArray) -> LongArray:
    """The element of each period of ``tensor`` behind what the steps before ``stop`` read."""
    rule = graph.known_rule_of(one.op).rule
    return reduce(
        np.maximum,
        (
            _end(rule, lie.place, stop) * lie.place.behind
            for lie in _lies_in(graph, one.op, one.factor, tensor)
        ),
    )


def _end(rule: Rule, place: Place, stop: LongArray) -> LongArray:
    piece = place.piece
    return np.minimum(piece.size, window_end(rule, piece, stop)) if isinstance(piece, Affine) else stop


def split_sizes(count: int, parts: int) -> list[int]:
    """Steps of each part: as equal as possible, the larger first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def weight_factor(graph: Graph, op: int) -> int | None:
    """The largest parallel factor of the largest weight of an op, such as its columns or channels."""
    row = graph.rule_of(op)
    weights = [k for k in row.operands if graph.tensor_kind[k] == WEIGHT] if row is not None else []
    if row is None or not weights or op in touched_states(graph):
        return None
    largest = max(weights, key=lambda k: int(graph.tensor_elements[k]))
    return _largest(graph, op, "parallel", largest)


def sum_factor(graph: Graph, op: int) -> int | None:
    """The largest reduction of a product of an activation and a weight; None if it has none."""
    row = graph.rule_of(op)
    if row is None or graph.op_class[op] != MATRIX:
        return None
    multiplied = [row.operands[i] for i in multiplicands(row.rule)]
    if sorted(graph.tensor_kind[multiplied].tolist()) != [ACTIVATION, WEIGHT]:
        return None
    return _largest(graph, op, "reduction", multiplied[0])


def _largest(graph: Graph, op: int, kind: str, tensor: int) -> int | None:
    """The largest factor of a kind along which an op can be divided, and that lies in a tensor."""
    factors = graph.known_rule_of(op).rule.factors
    found = [
        i for i in divisible_factors(graph)[op] if factors[i].kind == kind and _lies_in(graph, op, i, tensor)
    ]
    return max(found, key=lambda i: factors[i].size, default=None)

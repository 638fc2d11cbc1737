"""Defines splits: the graph in which parts replace each split op, and what joins or adds their results.

A part reads the pieces of its operands that its own pieces of the results need. It takes them from parts of
the op before, where that is divided along the same elements; else from the whole tensor. What joins the
parts, or adds the last partial result, has the name of the op and writes its tensor, so that others see no
difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from go_opt.env.copies.divisions import (
    COPIES,
    JOINED_BY,
    copied_states,
    divisions_of,
    old_piece,
    stops_of,
)
from go_opt.env.copies.exchanges import Exchange, buckets_of, exchange_of
from go_opt.env.copies.parts import (
    Held,
    Part,
    Ruled,
    SplitGraph,
    can_be_gathered,
    cells_of,
    flops_of_part,
    overlap,
    pieces_of,
    results_of,
    rule_of_move,
    rule_of_part,
    touched_by_part,
)
from go_opt.env.copies.pieces import Names, Piece, Range, elements_of, piece_of
from go_opt.env.rewrites.applying import with_rewrites
from go_opt.errors import PlanError
from go_opt.model.builder import GraphBuilder
from go_opt.model.dtypes import DTYPES
from go_opt.model.graph import (
    INPUT,
    NO_PRODUCER,
    OP_CLASSES,
    STATE,
    TENSOR_KINDS,
    WEIGHT,
    Graph,
    State,
    with_sequences,
)
from go_opt.model.plan import CollectiveOp, Plan, Split
from go_opt.model.states import with_host_states

JOIN: Final = "Concat"
TAKE: Final = "Slice"
_Row = dict[str, Any]  # arguments of GraphBuilder.add_op


@lru_cache(maxsize=32)
def split_graph_and_parts(graph: Graph, splits: tuple[Split, ...], *, is_last: bool = True) -> SplitGraph:
    """``graph`` with the ops that ``splits`` name in parts, and what the parts are.

    Args:
      splits: of one level.
      is_last: whether parts need no rules, as no further level divides them.

    Raises:
      PlanError: an op is not in the graph, or cannot be split like that.
    """
    expansion = _Expansion(graph, splits, has_rules=not is_last)
    return SplitGraph(expansion.graph(), expansion.parts, expansion.held)


def split_levels(graph: Graph, splits: tuple[Split, ...]) -> tuple[tuple[tuple[Split, ...], SplitGraph], ...]:
    """The splits of each level, with the graph in which those up to it are in parts.

    Raises:
      PlanError: as of :func:`split_graph_and_parts`.
    """
    levels = sorted({one.level for one in splits})
    found: list[tuple[tuple[Split, ...], SplitGraph]] = []
    for level in levels:
        own = tuple(one for one in splits if one.level == level)
        found.append((own, split_graph_and_parts(graph, own, is_last=level == levels[-1])))
        graph = found[-1][1].graph
    return tuple(found)


def split_graph(graph: Graph, splits: tuple[Split, ...]) -> Graph:
    """The graph with the parts of all levels, which is made once for all numbers of sequences."""
    levels = split_levels(with_sequences(graph, 1), splits)
    return with_sequences(levels[-1][1].graph if levels else graph, graph.sequences)


def unsplit_graph(graph: Graph, plan: Plan) -> Graph:
    """The model's graph with the rewrites of ``plan``, its sequences, and its states on the host.

    Raises:
      PlanError: the graph has no such state, or cannot be rewritten like that.
    """
    sent = with_host_states(graph, plan.host_states)
    return with_sequences(with_rewrites(sent, plan.rewrites), plan.sequences)


def planned_graph(graph: Graph, plan: Plan) -> Graph:
    """The graph that ``plan`` places: :func:`unsplit_graph`, with the split ops in parts.

    A graph that has the parts already is returned as it is.

    Raises:
      PlanError: an op that the plan rewrites or splits is not in the graph, or cannot be changed like that;
        or the graph has no such state.
    """
    graph = unsplit_graph(graph, plan)
    if not plan.splits:
        return graph
    if graph.fingerprint != plan.graph_fingerprint:
        return split_graph(graph, plan.splits)
    for split in plan.splits:
        made = "part 1 of " if split.factor else "copy 2 of "
        if not graph.ops_named(f"{split.op}/{Names(split.level).of_level}{made}"):
            raise PlanError(
                f"splits: the graph of the plan has no part of op {split.op[:120]!r}.", field="splits"
            )
    return graph


def state_names(graph: Graph, plan: Plan) -> dict[str, str]:
    """For each state of the planned graph, by name, the state of ``graph`` that it is, or is a part of."""
    whole, planned = with_sequences(unsplit_graph(graph, plan), 1), planned_graph(graph, plan)
    found = {name: name for name in (planned.tensor_names[state.read] for state in planned.states)}
    levels = split_levels(whole, plan.splits)
    befores = [whole, *(split.graph for _, split in levels)]
    for (_, split), before in reversed([*zip(levels, befores, strict=False)]):
        found = {
            name: before.tensor_names[split.held[of].tensor] if of in split.held else of
            for name, of in found.items()
        }
    return found


class _Expansion:
    """Replaces split ops; ``parts`` and ``held`` are as in :class:`SplitGraph`, complete after ``graph``."""

    def __init__(self, graph: Graph, splits: tuple[Split, ...], *, has_rules: bool) -> None:
        self._graph, self._has_rules = graph, has_rules
        self._names = Names(max((one.level for one in splits), default=0))
        divisions = divisions_of(graph, splits)
        stops, copied = stops_of(graph, divisions), copied_states(graph, divisions)
        self._copied = {op for op, of in divisions.items() if of[0].factor == COPIES}
        self._cells = {op: cells_of(graph, of, stops) for op, of in divisions.items()}
        self._made = {k: self._pieces_made(k) for op in self._cells for k in results_of(graph, op)}
        self._leaves_parts = {graph.op_index[one.op] for one in splits if not one.joined}
        self._copies = {state.read: number for state, number in copied.items()}
        kept = {state.next for state in graph.states if state not in copied}
        exchanged = (k for one in splits if one.collective for k in graph.outputs_of(graph.op_index[one.op]))
        found = {k: self._exchange_of(k) for k in exchanged if k in self._made and k not in kept}
        self._exchanges = {k: one for k, one in found.items() if one is not None}
        self._buckets = buckets_of(graph, splits, self._exchanges)
        self._whole = {k for k in range(graph.num_tensors) if self._is_needed_whole(k)}
        self.parts: dict[str, Part] = {}
        self.held: dict[str, Held] = {}
        self._slices: dict[str, int] = {}  # of weights and states: elements

    def graph(self) -> Graph:
        graph = self._graph
        ops = [row for op in range(graph.num_ops) for row in self._rows(op)]
        states = [(*pair, state.scope) for state in graph.states for pair in self._state_parts(state)]
        builder = GraphBuilder(graph.name, precision=graph.precision, bindings=graph.bindings)
        read = {name for row in ops for name, _ in row["reads"]}
        for k in np.flatnonzero(graph.tensor_producer == NO_PRODUCER).tolist():
            if k in self._copies:
                for name in self._names_of_copies(k):
                    self._hold(k, name)
                    self._add_tensor(builder, k, name, int(graph.tensor_elements[k]))
            elif graph.tensor_names[k] in read:
                self._add_tensor(builder, k, graph.tensor_names[k], int(graph.tensor_elements[k]))
            elif graph.tensor_kind[k] == STATE:
                self._add_slices(builder, [name for name in self._slices if self.held[name].tensor == k])
        is_state = graph.tensor_kind == STATE
        self._add_slices(builder, [name for name in self._slices if not is_state[self.held[name].tensor]])
        for row in ops:
            ruled: Ruled | None = row.pop("ruled", None)
            builder.add_op(**row)
            if ruled is not None:
                builder.set_rule(row["name"], *ruled)
        for name in self._outputs():
            builder.mark_output(name)
        for state in states:
            builder.add_state(*state)
        return replace(
            builder.build(),
            nodes_without_op=graph.nodes_without_op,
            unknown_ops=graph.unknown_ops,
            unpaired_states=graph.unpaired_states,
            sequences=graph.sequences,
            host_states=graph.host_states,
            rewrites=graph.rewrites,
        )

    def _state_parts(self, state: State) -> Iterator[tuple[str, str]]:
        """Each part or copy of a state with its next value; the state itself if there is one."""
        names, toucher = self._graph.tensor_names, next(iter(self._graph.readers_of(state.read)), NO_PRODUCER)
        if state.read in self._copies:
            read = self._names_of_copies(state.read)
            yield from zip(read, self._names_of_copies(state.next, len(read)), strict=True)
        elif toucher not in self._cells:
            yield names[state.read], names[state.next]
        elif state.next == state.read:
            yield from ((name, name) for name, held in self.held.items() if held.tensor == state.read)
        else:
            for following, piece in self._made[state.next]:
                yield self._slice(state.read, old_piece(self._graph, state, piece)), following

    def _names_of_copies(self, k: int, copies: int = 0) -> list[str]:
        """The names of the copies of a tensor: of a state, or of as many as ``copies`` of its next value.

        Raises:
          PlanError: there is not one for each copy of the state.
        """
        graph, name = self._graph, self._graph.tensor_names[k]
        if k in self._copies:
            return [self._names.copy(name, i, self._copies[k]) for i in range(self._copies[k])]
        made = self._exchanges[k].results if k in self._exchanges else self._made.get(k, ())
        is_copied = int(graph.tensor_producer[k]) in self._copied or k in self._exchanges
        if not is_copied or len(made) != copies or (k in self._exchanges and any(made)):
            problem = f"{name!r}, the next value of a state of {copies} copies, is not computed for each"
            raise PlanError(f"splits: {problem}.", field="splits")
        return [self._names.copy(name, i, copies) for i in range(copies)]

    def _outputs(self) -> Iterator[str]:
        """Names of the tensors that the host reads."""
        graph = self._graph
        for k in np.flatnonzero(graph.tensor_is_output).tolist():
            if int(graph.tensor_producer[k]) in self._leaves_parts and k not in self._whole:
                yield from (name for name, _ in self._made[k])
            else:
                yield graph.tensor_names[k]

    def _add_slices(self, builder: GraphBuilder, names: Sequence[str]) -> None:
        for name in names:
            self._add_tensor(builder, self.held[name].tensor, name, self._slices[name])

    def _add_tensor(self, builder: GraphBuilder, k: int, name: str, elements: int) -> None:
        graph = self._graph
        builder.add_tensor(name, elements, DTYPES[graph.tensor_dtype[k]], TENSOR_KINDS[graph.tensor_kind[k]])

    def _parts_of(self, op: int) -> list[tuple[Range, ...]]:
        """The ranges of each part of a split op, in order; none of others."""
        return [cell.ranges + term for cell in self._cells.get(op, ()) for term in cell.terms]

    def _exchange_of(self, k: int) -> Exchange | None:
        """The collective that exchanges what the parts of an op make of tensor ``k``."""
        graph, op = self._graph, int(self._graph.tensor_producer[k])
        number = len(self._parts_of(op))
        wanted: list[tuple[Piece, ...] | None] = []
        for reader in graph.readers_of(k):
            row, parts = graph.rule_of(reader), self._parts_of(reader)
            read = [list(dict.fromkeys(pieces_of(row, k, part))) for part in parts if row is not None]
            is_alike = len(read) == number and all(len(pieces) == 1 for pieces in read)
            wanted.append(tuple(pieces[0] for pieces in read) if is_alike else None)
        is_sum = len(self._cells[op]) == 1
        sources = [piece for _, piece in self._made[k]] * (number if is_sum else 1)
        return exchange_of(sources, wanted, is_sum=is_sum, is_output=bool(graph.tensor_is_output[k]))

    def _is_needed_whole(self, k: int) -> bool:
        """Whether a tensor of a split op is read whole, or in pieces that its parts cannot make up."""
        graph, op = self._graph, int(self._graph.tensor_producer[k])
        if k not in self._made or op in self._copied:
            return False
        if k in self._exchanges:
            return self._exchanges[k].is_whole
        readers, is_output = graph.readers_of(k), bool(graph.tensor_is_output[k])
        is_kept = any(k == state.next for state in graph.states)
        if (is_output or not (readers or is_kept)) and op not in self._leaves_parts:
            return True
        pieces = [piece for _, piece in self._made[k]]
        return any(
            not can_be_gathered(pieces, piece) for reader in readers for piece in self._pieces_read(reader, k)
        )

    def _pieces_read(self, op: int, k: int) -> Iterator[Piece]:
        if op not in self._cells or op in self._copied:
            yield ()
            return
        row = self._graph.known_rule_of(op)
        for ranges in self._parts_of(op):
            yield from pieces_of(row, k, ranges)

    def _pieces_made(self, k: int) -> list[tuple[str, Piece]]:
        """The pieces of a tensor that the parts of its op write, or whose last terms are added."""
        op, name = int(self._graph.tensor_producer[k]), self._graph.tensor_names[k]
        cells = self._cells[op]
        if op in self._copied:
            return [(self._names.copy(name, i, len(cells)), ()) for i in range(len(cells))]
        row = self._graph.known_rule_of(op)
        access = row.rule.results[row.results.index(k)]
        if len(cells) == 1:
            return [(name, ())]
        return [
            (self._names.part(name, i, len(cells)), piece_of(row.rule, access, cell.ranges))
            for i, cell in enumerate(cells)
        ]

    def _rows(self, op: int) -> Iterator[_Row]:
        """One op, or what its parts take, the parts, and what joins or adds their results."""
        graph, name = self._graph, self._graph.op_names[op]
        if op not in self._cells:
            reads = [(graph.tensor_names[k], touched) for k, touched in graph.reads_of(op)]
            writes = [self._write(k, graph.tensor_names[k]) for k in graph.outputs_of(op)]
            of_op = self._op(op, name, float(graph.op_flops[op]), reads, writes) | self._measured(op)
            yield of_op | self._ruled(op, (), {(k, ()): graph.tensor_names[k] for k, _ in graph.reads_of(op)})
            return
        cells = self._cells[op]
        # What has no elements and is not in the rule puts ops that touch a state in order; parts get it anew.
        outputs = {k: [made for made, _ in self._made[k]] for k in results_of(graph, op)}
        if op in self._copied:
            yield from (self._copy(op, i, [(k, made[i]) for k, made in outputs.items()])
                        for i in range(len(cells)))  # fmt: skip
            return
        moves: list[_Row] = []
        parts: list[_Row] = []
        for i in range(len(cells)):
            of_cell = name if len(cells) == 1 else self._names.part(name, i, len(cells))
            parts += self._terms(op, i, of_cell, [(k, made[i]) for k, made in outputs.items()], moves)
        yield from moves
        yield from parts
        for k in outputs:
            if k in self._exchanges:
                yield from self._exchanged(k, self._exchanges[k])
            elif k in self._whole and len(cells) > 1:
                yield from self._joined(k, self._made[k], ())

    def _copy(self, op: int, copy: int, results: Sequence[tuple[int, str]]) -> _Row:
        """One of the ops that each compute all of an op, from the copies of what it reads."""
        graph, row = self._graph, self._graph.rule_of(op)
        name = self._names.copy(graph.op_names[op], copy, len(self._cells[op]))
        self.parts[name] = Part(op, (), copy)
        for k, written in results:
            self._hold(k, written)
        reads = [
            (self._copy_for(k, op, copy), touched)
            for k, touched in graph.reads_of(op)
            if touched or (row is not None and k in row.operands)
        ]
        writes = [self._write(k, written) for k, written in results]
        of_op = self._op(op, name, float(graph.op_flops[op]), reads, writes) | self._measured(op)
        return of_op | self._ruled(
            op, (), {(k, ()): self._copy_for(k, op, copy) for k, _ in graph.reads_of(op)}
        )

    def _ruled(self, op: int, ranges: tuple[Range, ...], read: Mapping[tuple[int, Piece], str]) -> _Row:
        """The rule of a part that reads these pieces of tensors, if another level may divide it."""
        if not self._has_rules:
            return {}
        return {"ruled": rule_of_part(self._graph, op, ranges, read, self._copies.keys())}

    def _hold(self, k: int, name: str, piece: Piece = ()) -> None:
        """Note a copy of tensor ``k``, or of a piece; the first has its name."""
        if name != self._graph.tensor_names[k]:
            self.held[name] = Held(k, piece)

    def _measured(self, op: int) -> _Row:
        return {"measured_s": self._graph.measured_of(op)}

    def _exchanged(self, k: int, exchange: Exchange) -> Iterator[_Row]:
        """What hands over the results of parts, and of each chip its collective; the first writes ``k``."""
        graph, op, number = self._graph, int(self._graph.tensor_producer[k]), len(exchange.results)
        tensor, joining, is_sum = graph.tensor_names[k], self._joining_op(k), len(self._cells[op]) == 1
        made = [(self._names.part(tensor, i, number), ()) for i in range(number)] if is_sum else self._made[k]
        for i, (source, piece) in enumerate(made):
            sent = self._names.sent(tensor, i, number)
            self.held[sent] = Held(k, piece, is_partial=is_sum)
            of = self._names.sent(joining, i, number)
            yield self._move(CollectiveOp.SEND.value, k, of, sent, piece, [source])
        for piece in filter(None, exchange.results):  # also before the last of a bucket is there
            self._hold(k, self._names.piece(tensor, piece), piece)
        number_of, bucket = next((one for one in self._buckets.items() if k in one[1]), (0, [k]))
        if k != bucket[-1]:
            return
        sources = [
            (self._names.sent(graph.tensor_names[each], i, number), None)
            for each in bucket
            for i in range(number)
        ]
        for i in range(number):
            name = self._names.copy(joining, i, number)
            if number_of:
                name = self._names.copy(f"{exchange.op.value} of bucket {number_of}", i, number)
            writes = []
            for each in bucket:
                whole, piece = graph.tensor_names[each], self._exchanges[each].results[i]
                written = self._names.piece(whole, piece) if piece else self._names.copy(whole, i, number)
                self._hold(each, written, piece)
                writes.append(self._write(each, written, piece))
            if not number_of and exchange.results[i]:
                name = writes[0][0]
            row = self._move(exchange.op.value, k, name, writes[0][0], exchange.results[i], [])
            ruled = {} if number_of else self._ruled_move(k, [one for one, _ in sources], exchange.results[i])
            yield row | {"reads": sources, "writes": writes} | ruled

    def _terms(
        self, op: int, cell_number: int, name: str, results: Sequence[tuple[int, str]], moves: list[_Row]
    ) -> Iterator[_Row]:
        """The parts of a cell, and what adds each to those before; what takes operands goes to ``moves``."""
        graph, row, cell = self._graph, self._graph.known_rule_of(op), self._cells[op][cell_number]
        number = len(cell.terms)
        is_added = number > 1 and results[0][0] not in self._exchanges
        total = ""
        for i, term in enumerate(cell.terms):
            ranges = cell.ranges + term
            of_part = name if number == 1 else self._names.part(name, i, number)
            reads, read = [], dict[tuple[int, Piece], str]()
            for k, touched in graph.reads_of(op):
                if touched == 0 and k not in row.operands:  # as above, or a state that it touches
                    continue
                whole = self._copy_for(k, op, cell_number * number + i)
                for piece in dict.fromkeys(pieces_of(row, k, ranges)):
                    # A piece of a copy of a state is read where it lies.
                    is_held = k in self._copies
                    taken = whole if is_held else _moved(self._taken(k, piece, whole), moves)
                    reads.append((taken, touched_by_part(graph, row, (k, touched), piece, ranges)))
                    read[k, piece] = taken
            writes = []
            for k, tensor in results:
                written = tensor if number == 1 else self._names.part(tensor, i, number)
                access = row.rule.results[row.results.index(k)]
                piece = piece_of(row.rule, access, ranges)
                if written not in graph.tensor_index or number > 1:
                    self.held[written] = Held(k, piece, is_partial=number > 1)
                writes.append(self._write(k, written, piece))
            self.parts[of_part] = Part(op, ranges)
            of_op = self._op(op, of_part, flops_of_part(graph, op, ranges, is_first=i == 0), reads, writes)
            yield of_op | self._ruled(op, ranges, read)
            if number == 1:
                return
            if is_added and i > 0:
                yield self._sum(op, name, results[0], (total, writes[0][0]), i, number)
            total = writes[0][0] if i == 0 else self._names.sum(results[0][1], i, number)

    def _sum(
        self, op: int, name: str, result: tuple[int, str], added: tuple[str, str], i: int, number: int
    ) -> _Row:
        """What adds the partial results up to part ``i``."""
        k, tensor = result
        is_last = i == number - 1
        piece = self.held[added[1]].piece
        written = tensor if is_last else self._names.sum(tensor, i, number)
        if written not in self._graph.tensor_index:
            self.held[written] = Held(k, piece, is_partial=not is_last)
        write = self._write(k, written, piece)
        of = name if is_last else self._names.sum(name, i, number)
        sums = self._op(op, of, float(write[1]), [(one, None) for one in added], [write])
        return sums | {"op_type": JOINED_BY[self._graph.op_types[op]], "op_class": "vector"}

    def _joined(self, k: int, pieces: list[tuple[str, Piece]], wanted: Piece) -> Iterator[_Row]:
        """What joins pieces of a tensor that make up ``wanted``, along one cut after the other."""
        name = self._graph.tensor_names[k]
        for cut in reversed(pieces[0][1]):
            groups: dict[Piece, list[str]] = {}
            for made, piece in pieces:
                rest = [one for one in piece if one.period != cut.period]
                rest += [one for one in wanted if one.period == cut.period]
                groups.setdefault(tuple(sorted(rest, reverse=True)), []).append(made)
            pieces = []
            for rest_of, group in groups.items():
                joined = group[0]
                if len(group) > 1 and rest_of:
                    joined = self._names.piece(name, rest_of)
                    if joined not in self.held:
                        self.held[joined] = Held(k, rest_of)
                        yield self._move(JOIN, k, joined, joined, rest_of, group)
                elif len(group) > 1:
                    joined = name
                    yield self._move(JOIN, k, self._joining_op(k), name, (), group)
                pieces.append((joined, rest_of))

    def _joining_op(self, k: int) -> str:
        """The name of what joins tensor ``k``: that of the op, if this is its only result."""
        graph, op = self._graph, int(self._graph.tensor_producer[k])
        return graph.op_names[op] if len(graph.outputs_of(op)) == 1 else f"{graph.tensor_names[k]}/joined"

    def _copy_for(self, k: int, op: int, part: int) -> str:
        """The name of tensor ``k``, or of the copy on the chip of a part, if there are as many."""
        name, parts = self._graph.tensor_names[k], len(self._parts_of(op))
        exchange, producer = self._exchanges.get(k), int(self._graph.tensor_producer[k])
        copies = self._copies.get(k, 0)
        if exchange is not None and exchange.is_whole:
            copies = len(exchange.results)
        elif producer in self._copied:
            copies = len(self._cells[producer])
        return self._names.copy(name, part, parts) if copies == parts else name

    def _taken(self, k: int, wanted: Piece, name: str) -> Iterator[_Row | str]:
        """Yields the ops that make a piece of tensor ``k``, each once, and then the name of the piece.

        Args:
          name: of the tensor, or of a copy.
        """
        graph = self._graph
        producer = int(graph.tensor_producer[k])
        taken = self._names.piece(name, wanted) if wanted else name
        if not wanted or taken in self.held:
            yield taken
            return
        is_handed_out = graph.tensor_kind[k] == INPUT and bool(self._copied)  # to replicas
        if (graph.tensor_kind[k] in (WEIGHT, STATE) or is_handed_out) and k not in self._copies:
            yield self._slice(k, wanted)
            return
        pieces = self._made[k] if producer in self._cells else [(name, ())]
        same = next((made for made, piece in pieces if piece == wanted), None)
        if same is not None:
            yield same
            return
        is_made = producer in self._cells and name == graph.tensor_names[k]
        if not is_made or not can_be_gathered([one for _, one in pieces], wanted):
            self.held[taken] = Held(k, wanted)
            yield self._move(TAKE, k, taken, taken, wanted, [name])
            yield taken
            return
        found = []
        for made, piece in pieces:
            some = overlap(piece, wanted)
            if any(cut.start >= cut.stop for cut in some):
                continue
            part = made if some == piece else self._names.piece(name, some)
            if part != made and part not in self.held:
                self.held[part] = Held(k, some)
                yield self._move(TAKE, k, part, part, some, [made])
            found.append((part, some))
        yield from self._joined(k, found, wanted)
        yield taken

    def _slice(self, k: int, piece: Piece) -> str:
        """The name of a piece of a weight or state, or of the batch of a training step: no op takes it."""
        name = self._names.piece(self._graph.tensor_names[k], piece)
        self.held[name] = Held(k, piece)
        self._slices[name] = elements_of(piece, int(self._graph.tensor_elements[k]))
        return name

    def _move(self, op_type: str, k: int, name: str, written: str, piece: Piece, sources: list[str]) -> _Row:
        """An op that takes a piece of one tensor, or joins several."""
        write = self._write(k, written, piece)
        return {
            "name": name, "op_type": op_type, "op_class": "data_movement", "flops": 0.0, "dtype": write[2],
            "reads": [(source, write[1] if op_type == TAKE else None) for source in sources],
            "writes": [write],
        } | self._ruled_move(k, sources, piece)  # fmt: skip

    def _ruled_move(self, k: int, sources: Sequence[str], piece: Piece) -> _Row:
        if not self._has_rules or not sources:
            return {}
        return {"ruled": rule_of_move(self._graph, k, sources, self.held, piece)}

    def _write(self, k: int, name: str, piece: Piece = ()) -> tuple[str, int, str]:
        graph = self._graph
        return name, elements_of(piece, int(graph.tensor_elements[k])), DTYPES[graph.tensor_dtype[k]]

    def _op(
        self,
        op: int,
        name: str,
        flops: float,
        reads: Sequence[tuple[str, int | None]],
        writes: Sequence[tuple[str, int, str]],
    ) -> _Row:
        graph = self._graph
        return {
            "name": name,
            "op_type": graph.op_types[op],
            "op_class": OP_CLASSES[graph.op_class[op]],
            "flops": flops,
            "dtype": DTYPES[graph.op_dtype[op]],
            "reads": list(reads),
            "writes": list(writes),
            "excluded_kinds": graph.excluded_of(op),
        }


def _moved(found: Iterator[_Row | str], moves: list[_Row]) -> str:
    """Appends the ops to ``moves``; returns the name that comes last."""
    *rows, name = found
    moves += [row for row in rows if not isinstance(row, str)]
    assert isinstance(name, str)
    return name

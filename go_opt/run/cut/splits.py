"""Ops in parts as nodes of a model: the parts, and what takes, joins and adds pieces of their tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from go_opt.env.copies.divisions import JOINED_BY
from go_opt.env.copies.parts import Held, SplitGraph
from go_opt.env.copies.pieces import Piece, Range, piece_of, sum_name
from go_opt.env.copies.splits import JOIN, TAKE, split_levels
from go_opt.errors import ModelError
from go_opt.model.graph import INPUT, STATE, Graph, NamedState, OpRule
from go_opt.model.plan import CollectiveOp, Split
from go_opt.model.rule import Access
from go_opt.run.cut.source import Reads
from go_opt.run.cut.values import (
    Frame,
    Loops,
    attributes_of_part,
    axis_sizes,
    compact,
    constant,
    flat_sizes,
    frame_of,
    leave,
    loops_of,
    sizes_of,
    values_of,
    with_copies,
)
from go_opt.run.manifest import elements_in

_GEMM_WITHOUT_BIAS: Final = 11  # operator sets
_SLICE_READS_LIMITS: Final = 10
_SPLIT_READS_SIZES: Final = 13


class DividedState(NamedTuple):
    """A part of a state of the model, which is an input and an output of its own."""

    part: NamedState
    whole: NamedState  # by the names of the model's input and output
    piece: Piece  # of the state before an inference
    values: tuple[ir.Value, ...]  # of the whole: its input, and its output if it changes


class SplitNodes(NamedTuple):
    """What a model with split ops has beside its nodes."""

    parts: Sequence[ir.Value] = ()  # of outputs that the host joins, in nodes that are no ops
    states: Sequence[NamedState] = ()
    divided: Sequence[DividedState] = ()


def split_nodes(
    nodes: ir.Graph, graph: Graph, splits: Sequence[Split], states: Sequence[NamedState] = ()
) -> SplitNodes:
    """Replace the ops that ``splits`` name by their parts, under the names of the split graph.

    Args:
      graph: the graph of the unsplit model.
      states: by the names of the model's inputs and outputs.

    Raises:
      ModelError: an op cannot be split like that; the message names it.
      PlanError: as of :func:`go_opt.env.copies.splits.split_levels`.
    """
    found = SplitNodes(states=states)
    for own, split in split_levels(graph, tuple(splits)):
        made = _Maker(nodes, graph, own, split, found.states).made()
        found = SplitNodes(made.parts, made.states, _divided_again(found.divided, made))
        graph = split.graph
    return found


def _divided_again(before: Sequence[DividedState], made: SplitNodes) -> tuple[DividedState, ...]:
    """The parts of states of the model, some of which are copies of parts that were made before.

    Raises:
      ModelError: a part is divided again.
    """
    left, by_read = {state.read for state in made.states}, {one.part.read: one for one in before}
    found = [one for one in before if one.part.read in left]
    for one in made.divided:
        first = by_read.get(one.whole.read)
        if first is not None and first.piece and one.piece:
            raise ModelError(f"state {first.whole.read!r} is divided twice, which cannot be run.")
        found.append(
            one
            if first is None
            else DividedState(one.part, first.whole, first.piece or one.piece, first.values)
        )
    return tuple(found)


class _Maker:
    """Makes the nodes of one model."""

    def __init__(
        self,
        nodes: ir.Graph,
        graph: Graph,
        splits: Sequence[Split],
        split: SplitGraph,
        states: Sequence[NamedState],
    ) -> None:
        self._nodes, self._graph, self._named, self._split = nodes, graph, states, split
        self._reads = Reads(nodes, graph.op_index)
        self._divided = {self._reads.op_node[split.op] for split in splits}
        self._whole = {str(value.name): value for value in (*nodes.inputs, *self._reads.written.values())}
        self._values = dict(self._whole)  # by name, with those of the split graph
        self._values |= {state.read: nodes.initializers[state.read] for state in states
                         if state.read in nodes.initializers}  # fmt: skip
        self._slices: dict[tuple[str, ir.Value, tuple[int, ...]], ir.Value] = {}  # of constants
        self._joined: dict[ir.Value, ir.Value] = {}  # results of divided ops, joined again
        self._helpers: dict[str, Held] = {}  # what nodes hold on the way to the result of a collective
        self._new: list[ir.Node] = []  # not in the model yet
        self._pieces = {  # of states
            name: self._state_input(name)
            for name, held in split.held.items()
            if graph.tensor_kind[held.tensor] == STATE
        }
        self._values |= self._pieces

    def made(self) -> SplitNodes:
        """Make all nodes; returns what else there is."""
        states = {state.read: state for state in self._named}
        kept = states.keys() & {read for read, _ in self._state_parts()}  # the first of copies
        outputs = {str(value.name): value for value in self._nodes.outputs}
        rows = [row for row in self._state_parts() if row[0] in self._pieces]
        wholes = [states[self._graph.tensor_names[self._held(read).tensor]] for read, _ in rows]
        gone = {
            str(value.name)
            for whole in wholes
            if whole.read not in kept
            for value in (outputs.get(whole.next),)
            if value is not None
        }
        self._nodes.outputs[:] = [value for value in self._nodes.outputs if value.name not in gone]
        sent = self._sent_parts()
        divided = [
            self._divided_state(read, following, whole, outputs.get(whole.next))
            for (read, following), whole in zip(rows, wholes, strict=True)
        ]
        self._nodes.extend(self._new)
        self._replace_inputs({whole.read for whole in wholes}, kept)
        self._nodes.sort()
        left = [state for state in self._named if state not in wholes or state.read in kept]
        return SplitNodes(sent, (*left, *(one.part for one in divided)), divided)

    def _state_parts(self) -> list[tuple[str, str]]:
        """The states of the split graph."""
        split = self._split.graph
        return [(split.tensor_names[one.read], split.tensor_names[one.next]) for one in split.states]

    def _state_input(self, tensor: str) -> ir.Value:
        """A part of a state, as an input of the model; of a weight that changes, with its first values."""
        name, piece = self._graph.tensor_names[self._held(tensor).tensor], self._held(tensor).piece
        given = self._nodes.initializers.get(name)
        whole = self._whole[name] if given is None else given
        frame = frame_of(whole, piece)
        if given is not None:
            array = elements_in(piece, values_of(given))
            return self._constant(tensor, array.reshape(frame.shape(piece)), given.dtype)
        value = ir.Value(name=tensor, type=whole.type, shape=ir.Shape(frame.shape(piece)))
        self._nodes.inputs.append(value)
        return value

    def _divided_state(
        self, read: str, following: str, whole: NamedState, output: ir.Value | None
    ) -> DividedState:
        """A part of a state; its next value becomes an output of the model."""
        held, next_name = self._held(read), read
        name = self._graph.tensor_names[held.tensor]
        given = self._nodes.initializers.get(name, self._whole.get(name))
        assert given is not None
        values = [given]
        if following != read and output is not None:
            values.append(output)
            piece = self._held(following).piece
            shape = frame_of(output, piece).shape(piece)
            kept = self._reshaped(self._values[following], shape, f"{following}/kept")
            self._nodes.outputs.append(kept)
            next_name = str(kept.name)
        part = NamedState(read, next_name, whole.scope)
        return DividedState(part, whole, held.piece, tuple(values))

    def _replace_inputs(self, names: Collection[str], kept: Collection[str]) -> None:
        """Put parts in the place of inputs of the model, or copies behind those ``kept``.

        Views of inputs that nothing reads go.
        """
        for node in reversed(list(self._nodes)):
            is_op = node.name in self._graph.op_index or node.name in self._split.graph.op_index
            is_used = any(one.uses() or one in self._nodes.outputs for one in node.outputs)
            if (
                not is_op
                and not is_used
                and {
                    one.name for one in self._reads.bases_of([one for one in node.inputs if one is not None])
                }
                & {*names}
            ):
                self._nodes.remove(node, safe=True)
        pieces: dict[str, list[ir.Value]] = {name: [] for name in names}
        for name in self._split.graph.tensor_names:
            if name in self._pieces:
                pieces[self._graph.tensor_names[self._held(name).tensor]].append(self._pieces[name])
        whole = [value for value in self._nodes.inputs if value.name not in self._pieces]
        pieces |= {str(one.name): [one, *pieces[str(one.name)]] for one in whole if one.name in kept}
        self._nodes.inputs[:] = [one for value in whole for one in pieces.get(str(value.name), [value])]
        for name in names & self._nodes.initializers.keys():
            if not self._nodes.initializers[name].uses():
                self._nodes.initializers.pop(name)

    def _sent_parts(self) -> list[ir.Value]:
        """Make all nodes; returns the parts of outputs that the host joins."""
        graph, split = self._graph, self._split
        place = {node: i for i, node in enumerate(self._nodes)}
        last: ir.Node | None = None  # of the nodes that are being replaced
        for k in np.flatnonzero(split.graph.tensor_kind == INPUT).tolist():
            if (tensor := split.graph.tensor_names[k]) in split.held:  # what a replica has of the batch
                self._add_move(tensor, TAKE, [graph.tensor_names[self._held(tensor).tensor]], tensor)
        for op, name in enumerate(split.graph.op_names):
            # What has no elements, or is read without any, only touches a state.
            reads = [split.graph.tensor_names[k] for k, touched in split.graph.reads_of(op) if touched]
            outputs = [k for k in split.graph.outputs_of(op) if split.graph.tensor_elements[k]]
            writes = [split.graph.tensor_names[k] for k in outputs]
            if name in split.parts:
                node = self._reads.op_node[graph.op_names[split.parts[name].op]]
                last = node if last is None else max(last, node, key=place.__getitem__)
                self._add_part(name, node, reads, writes)
            elif name in graph.op_index and self._reads.op_node[name] not in self._divided:
                last = None
                continue
            elif (collective := CollectiveOp.of(split.graph.op_types[op])) is not None:
                self._add_exchange(name, collective, reads, writes)
            else:
                self._add_move(name, split.graph.op_types[op], reads, writes[0])
            if last is not None and self._whole_of(writes[0]).producer() in self._divided:
                self._nodes.insert_before(last, self._new)
                self._new = []
        sent = [
            part
            for whole, parts in self._parts_of_outputs().items()
            for part in self._join_on_host(whole, parts)
        ]
        for value, joined in self._joined.items():
            value.replace_all_uses_with(joined, replace_graph_outputs=True)
        for name in split.graph.tensor_names:  # slices of weights in the order of the split graph
            if name in split.held and name in self._nodes.initializers:
                self._nodes.register_initializer(self._nodes.initializers.pop(name))
        self._remove_divided()
        self._nodes.sort()  # views of what is joined after parts of later ops
        return sent

    def _held(self, tensor: str) -> Held:
        held = self._split.held.get(tensor) or self._helpers.get(tensor)
        return held or Held(self._graph.tensor_index[tensor], ())

    def _whole_of(self, tensor: str) -> ir.Value:
        """The value of the whole model of which a tensor holds a piece."""
        name = self._graph.tensor_names[self._held(tensor).tensor]
        return self._whole[name] if name in self._whole else self._nodes.initializers[name]

    def _add_part(self, name: str, node: ir.Node, reads: Sequence[str], writes: Sequence[str]) -> None:
        part, row = self._split.parts[name], self._graph.rule_of(self._split.parts[name].op)
        written = {self._whole_of(tensor): tensor for tensor in writes}
        results = []
        for output in node.outputs:
            loops = loops_of(output) if output in written else []
            for cut in self._held(written[output]).piece if output in written else ():
                leave(loops, cut, node)
            results.append((written.get(output, ""), axis_sizes(loops), output))
        inputs = self._inputs(name, node, row, part.ranges, reads, results[0][1])
        dtype = node.outputs[0].dtype
        if node.op_type == "ScatterND" and inputs[0] is None and dtype is not None:
            zeros = np.zeros(results[0][1], dtype.numpy())  # only the first part adds to what is there
            inputs[0] = self._constant(f"{name}/zeros", zeros, dtype)
        while inputs and inputs[-1] is None:
            inputs.pop()
        is_bare = node.op_type == "Gemm" and len(inputs) < len(node.inputs)
        if is_bare and self._nodes.opset_imports[""] < _GEMM_WITHOUT_BIAS:
            problem = f"before operator set {_GEMM_WITHOUT_BIAS} a Gemm has a bias"
            raise ModelError(f"op {node.name!r} cannot be split along its sums: {problem}.")
        made = ir.node(
            node.op_type,
            inputs,
            overload=node.overload,
            domain=node.domain,
            name=name,
            num_outputs=len(results),
        )
        made.attributes.update(
            attributes_of_part(node, row, part.ranges) if row is not None and part.ranges else node.attributes
        )
        self._add(made, results)
        for output, tensor in written.items():
            if tensor == output.name:  # the first of copies
                self._joined[output] = self._values[tensor]

    def _inputs(
        self,
        name: str,
        node: ir.Node,
        row: OpRule | None,
        ranges: tuple[Range, ...],
        reads: Sequence[str],
        result: Sequence[int],
    ) -> list[ir.Value | None]:
        """What a part or copy reads, seen as the node sees it; None for what another part adds."""
        tensors = {self._held(tensor)[:2]: tensor for tensor in reads}
        inputs: list[ir.Value | None] = []
        accesses: dict[int, list[Access]] = {}
        if row is not None and ranges:
            for k, access in zip(row.operands, row.rule.operands, strict=True):
                accesses.setdefault(k, []).append(access)
        for place, value in enumerate(node.inputs):
            k = -1 if value is None else self._graph.tensor_index.get(self._tensor_of(value), -1)
            view = f"{name}/view {place}"
            if value is not None and not ranges and (k, ()) in tensors:
                inputs.append(self._seen(node, value, tensors[k, ()], view, result))
                continue
            if value is None or row is None or not accesses.get(k):
                inputs.append(value)
                continue
            piece = piece_of(row.rule, accesses[k].pop(0), ranges)
            tensor = tensors.get((k, piece))
            if tensor is None and (k, ()) in tensors:  # read where it lies, in a copy of a state
                tensor = f"{tensors[k, ()]}/read by {name}"
                self._helpers[tensor] = Held(k, piece)
                self._add_move(tensor, TAKE, [tensors[k, ()]], tensor)
            inputs.append(None if tensor is None else self._seen(node, value, tensor, view, result))
        return inputs

    def _tensor_of(self, value: ir.Value) -> str:
        """The tensor of the graph that a value is a view of."""
        bases = self._reads.bases_of([value])
        return str(bases[0].name if bases else value.meta.get("tensor", value.name))

    def _seen(
        self, node: ir.Node, value: ir.Value, tensor: str, name: str, result: Sequence[int]
    ) -> ir.Value:
        """What a tensor of the split graph holds, seen as a node sees the whole in ``value``."""
        loops, piece = loops_of(value), self._held(tensor).piece
        is_constant = not self._reads.bases_of([value]) and tensor not in self._pieces
        array = values_of(value).reshape(flat_sizes(loops)) if is_constant and piece else None
        for cut in piece:
            place, steps, count = leave(loops, cut, node)
            if array is not None:
                before, after = array.shape[:place], array.shape[place + 1 :]
                blocks = array.reshape(*before, -1, count, *after)
                array = blocks.take(steps, place + 1).reshape(flat_sizes(loops))
        has_copies = any(step == 0 for axis in loops for _, step in axis)
        if has_copies:
            loops = with_copies(loops, sizes_of(value), sizes_of(node.outputs[0]), result)
        sizes = axis_sizes(loops)
        is_copy = tensor != self._tensor_of(value) and tensor in self._values
        if not piece and sizes == sizes_of(value) and not is_copy:
            return value
        if is_constant and not is_copy:
            if array is None:
                array = values_of(value).reshape(flat_sizes(loops_of(value)))
            return self._slice(tensor, value, loops, name, array)
        if not has_copies:
            return self._reshaped(self._values[tensor], sizes, name)
        once = [1 if step == 0 else size for axis in loops for size, step in axis]
        seen = self._reshaped(self._values[tensor], once, f"{name}/once")
        copied = f"{name}/copied"
        expand = ir.node("Expand", [seen, self._integers(f"{copied}/shape", flat_sizes(loops))], name=copied)
        self._add(expand, [(copied, flat_sizes(loops), seen)])
        made = self._reshaped(expand.outputs[0], sizes, name)
        made.meta["steps"] = compact(loops)  # for a further level
        return made

    def _slice(self, tensor: str, value: ir.Value, loops: Loops, name: str, array: NDArray) -> ir.Value:
        """An initializer that is what a node sees of a constant, made once."""
        sizes = axis_sizes(loops)
        key = tensor, value, tuple(sizes)
        if key not in self._slices:
            for place, (size, step) in enumerate(one for axis in loops for one in axis):
                array = array.take(range(size), place) if step == 0 else array
            unique = tensor if tensor not in self._nodes.initializers else name
            self._slices[key] = self._constant(unique, array.reshape(sizes), value.dtype)
        return self._slices[key]

    def _add_move(self, name: str, op_type: str, reads: Sequence[str], written: str) -> None:
        """Add what takes a piece of a tensor, or joins or adds several."""
        reads = sorted(reads, key=lambda read: self._held(read).piece)
        result, sources = self._held(written), [self._held(read) for read in reads]
        whole, values = self._whole_of(written), [self._values[read] for read in reads]
        sizes = sizes_of(values[0])
        move = ir.node("Identity" if op_type == CollectiveOp.SEND else op_type, values, name=name)
        if op_type in (JOIN, TAKE):
            frame = frame_of(whole, (sources[0] if op_type == JOIN else result).piece)
            sizes = frame.shape(result.piece)
            values = [
                self._reshaped(value, frame.shape(held.piece), f"{name}/view {i}")
                for i, (value, held) in enumerate(zip(values, sources, strict=True))
            ]
            move = self._move_node(op_type, values, frame, (result, *sources), name)
        self._add(move, [(written, sizes, whole)])
        if written == self._graph.tensor_names[result.tensor]:
            self._joined[whole] = self._reshaped(move.outputs[0], sizes_of(whole), f"{name}/view")
            if whole in self._nodes.outputs and sizes != sizes_of(whole):
                problem = f"its parts lie along no axis of the output {whole.name!r} of the model"
                raise ModelError(f"op {name!r} cannot be split: {problem}.")

    def _add_exchange(self, name: str, of: CollectiveOp, reads: Sequence[str], writes: Sequence[str]) -> None:
        """Add what a chip has after a collective; of a bucket in one array, which the op parts."""
        if len(writes) == 1:
            self._add_exchanged(name, of, reads, writes[0])
            return
        flat: list[ir.Value] = []
        for i, written in enumerate(writes):
            helper, k = f"{name}/of {i + 1}", self._held(written).tensor
            self._helpers[helper] = self._held(written)
            sent = [read for read in reads if self._held(read).tensor == k]
            self._add_exchanged(helper, of, sent, helper)
            size = math.prod(sizes_of(self._values[helper]))
            flat.append(self._reshaped(self._values[helper], [size], f"{helper}/flat"))
        if len({one.dtype for one in flat}) > 1:
            raise ModelError(f"op {name!r} cannot be run: its bucket has tensors of several types.")
        numbers = [math.prod(sizes_of(one)) for one in flat]
        joined = ir.node(JOIN, flat, {"axis": 0}, name=f"{name}/joined")
        self._add(joined, [(f"{name}/joined", [sum(numbers)], flat[0])])
        is_old = self._nodes.opset_imports[""] < _SPLIT_READS_SIZES
        inputs = joined.outputs if is_old else [*joined.outputs, self._integers(f"{name}/sizes", numbers)]
        parted = ir.node("Split", inputs, {"axis": 0}, name=name, num_outputs=len(flat))
        if is_old:
            parted.attributes.add(ir.AttrInt64s("split", numbers))
        self._add(parted, [(one, [n], flat[0]) for one, n in zip(writes, numbers, strict=True)])
        for one in writes:
            if one in self._graph.tensor_index:
                whole = self._whole_of(one)
                self._joined[whole] = self._reshaped(self._values[one], sizes_of(whole), f"{one}/seen")

    def _add_exchanged(self, name: str, of: CollectiveOp, reads: Sequence[str], written: str) -> None:
        """Add all that is exchanged of a tensor, joined or added, or a slice of it."""
        result = self._held(written)
        whole = f"{name}/whole" if result.piece else written
        self._helpers[whole] = Held(result.tensor, ())
        if of in (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_TO_ALL):
            self._add_move(name if whole == written else whole, JOIN, reads, whole)
        else:
            adding = JOINED_BY[self._graph.op_types[self._graph.tensor_producer[result.tensor]]]
            total = reads[0]
            for i, read in enumerate(reads[1:], 2):
                added = whole if i == len(reads) else sum_name(name, i - 1, len(reads))
                self._helpers[added] = Held(result.tensor, (), is_partial=added != whole)
                self._add_move(name if added == written else added, adding, [total, read], added)
                total = added
        if result.piece:
            self._add_move(name, TAKE, [whole], written)

    def _move_node(
        self, op_type: str, values: Sequence[ir.Value], frame: Frame, held: Sequence[Held], name: str
    ) -> ir.Node:
        """A node that takes a piece out of a value, or joins several; ``held`` are the result and they."""
        piece, *pieces = (one.piece for one in held)
        if op_type == JOIN:
            differing = (one.period for one, other in zip(*pieces[:2], strict=True) if one != other)
            return ir.node(JOIN, values, {"axis": frame.axes[next(differing)][0]}, name=name)
        first = {cut.period: cut.start for cut in pieces[0]}
        rows = [(frame.axes[cut.period], first.get(cut.period, 0), cut) for cut in piece]
        given = {
            "starts": [(cut.start - before) // step for (_, step), before, cut in rows],
            "ends": [(cut.stop - before) // step for (_, step), before, cut in rows],
            "axes": [axis for (axis, _), _, _ in rows],
        }
        if self._nodes.opset_imports[""] < _SLICE_READS_LIMITS:
            return ir.node(TAKE, values, given, name=name)
        read = [self._integers(f"{name}/{what}", numbers) for what, numbers in given.items()]
        return ir.node(TAKE, [*values, *read], name=name)

    def _constant(self, name: str, array: NDArray, dtype: ir.DataType | None = None) -> ir.Value:
        return constant(self._nodes, name, array, dtype)

    def _integers(self, name: str, numbers: Sequence[int]) -> ir.Value:
        return self._constant(name, np.array(numbers, np.int64))

    def _reshaped(self, value: ir.Value, sizes: Sequence[int], name: str) -> ir.Value:
        if sizes_of(value) == list(sizes):
            return value
        view = ir.node("Reshape", [value, self._integers(f"{name}/shape", sizes)], name=name)
        self._add(view, [(name, sizes, value)])
        return view.outputs[0]

    def _add(self, node: ir.Node, tensors: Sequence[tuple[str, Sequence[int], ir.Value]]) -> None:
        """Add a node, with names, sizes and types (those of other values) for its outputs."""
        for output, (name, sizes, like) in zip(node.outputs, tensors, strict=True):
            output.name, output.type, output.shape = name, like.type, ir.Shape(sizes)
            self._values[name] = output
        self._new.append(node)

    def _parts_of_outputs(self) -> dict[ir.Value, list[str]]:
        """The tensors that the host joins, of each output of an op; major to minor."""
        parts: dict[ir.Value, list[str]] = {}
        names = self._split.graph.tensor_names
        for name in (names[k] for k in np.flatnonzero(self._split.graph.tensor_is_output)):
            if self._held(name).piece:
                parts.setdefault(self._whole_of(name), []).append(name)
        return {whole: sorted(found, key=lambda one: self._held(one).piece) for whole, found in parts.items()}

    def _join_on_host(self, whole: ir.Value, parts: Sequence[str]) -> list[ir.Value]:
        """Join parts along one cut after the other; returns their values."""
        pieces = [self._held(part).piece for part in parts]
        frame = frame_of(whole, pieces[0])
        joined = [
            self._reshaped(self._values[part], frame.shape(piece), f"{part}/sent")
            for part, piece in zip(parts, pieces, strict=True)
        ]
        for i, cut in reversed(list(enumerate(pieces[0]))):
            number = len({piece[i] for piece in pieces})
            axis = frame.axes[cut.period][0]
            groups = [joined[at : at + number] for at in range(0, len(joined), number)]
            joined = [
                self._joined_on_host(whole, group, axis, f"{i}.{at}") for at, group in enumerate(groups)
            ]
        (last,) = joined
        self._joined[whole] = self._reshaped(last, sizes_of(whole), f"{whole.name}/seen")
        self._joined[whole].name = whole.name
        self._nodes.extend(self._new)
        self._new = []
        return [self._values[part] for part in parts]

    def _joined_on_host(self, whole: ir.Value, group: Sequence[ir.Value], axis: int, which: str) -> ir.Value:
        name = f"{whole.name}/joined {which}"
        sizes = sizes_of(group[0])
        sizes[axis] = sum(sizes_of(one)[axis] for one in group)
        node = ir.node(JOIN, group, {"axis": axis}, name=name)
        self._add(node, [(name, sizes, whole)])
        return node.outputs[0]

    def _remove_divided(self) -> None:
        """Remove the nodes that have parts, and views of what they wrote."""
        gone = set(self._divided)
        for node in self._nodes:
            is_op = node.name in self._graph.op_index or node.name in self._split.graph.op_index
            if not is_op and gone & {value.producer() for value in node.inputs if value is not None}:
                gone.add(node)
        self._nodes.remove(gone)

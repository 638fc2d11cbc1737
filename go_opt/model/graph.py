"""The graph of a model: ops and tensors, frozen and validated.

Axes: ``N`` ops, ``K`` tensors, ``R`` reads (a tensor read by an op), ``E`` edges.
Ragged data is CSR: row ``i`` of ``x`` is ``x[ptr[i]:ptr[i + 1]]``.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate, islice, pairwise, takewhile
from operator import mul
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from go_opt.common.arrays import BoolArray, CodeArray, FloatArray, IntArray, LongArray, csr, frozen
from go_opt.errors import GraphError, ModelError
from go_opt.model.bindings import NO_BINDINGS, Bindings
from go_opt.model.dtypes import DTYPES
from go_opt.model.rule import Access, Rule, Shape, fault_of

OP_CLASSES: Final = ("matrix", "vector", "data_movement")
MATRIX, VECTOR, DATA_MOVEMENT = range(3)
TENSOR_KINDS: Final = ("activation", "weight", "input", "state")
ACTIVATION, WEIGHT, INPUT, STATE = range(4)
NO_PRODUCER: Final = -1
Precision = Literal["native", "as-is"]
Scope = Literal["sequence", "model"]

# Above 2**53 a count is no longer exact as float64, and sums of bytes may overflow int64.
MAX_ELEMENTS: Final = 2**53


def check_precision(precision: str) -> None:
    """Raise ModelError if ``precision`` is not a Precision."""
    if precision not in get_args(Precision):
        raise ModelError(f"precision must be 'native' or 'as-is', not {precision!r}.", field="precision")


class NodeWithoutOp(NamedTuple):
    """A node of the imported model that is not an op of the graph."""

    name: str
    # "folded": computed ahead of time; `op` is the only op that reads the constant. "view": another name
    # of a tensor that `op` produces. "merged": part of `op`. "inlined": replaced by the nodes inside.
    # "unused": no output depends on it.
    became: str
    op: str | None  # None if there is no such op, or several


class UnknownOp(NamedTuple):
    """An op, or a node inside one, whose type has no cost rule, with what it was taken to cost."""

    name: str
    op_type: str
    flops: float  # of one inference


class State(NamedTuple):
    """A tensor that a step reads, and the tensor that is its value in the next step.

    All ops that touch the state read it in the graph, which keeps them on one chip: its readers, the op that
    computes the next value, and, if that is written in place, the readers of the next value.
    """

    read: int  # tensor of kind STATE
    next: int  # the tensor itself: the state never changes
    scope: Scope  # "sequence": each sequence in flight has its own; "model": there is one
    in_place: bool = False  # the next value is the same buffer, of which a part is written
    written: int = 0  # elements, in each step
    buffers: int = 1  # 2: the old value is needed until the next one is complete


class Rewrite(NamedTuple):
    """Ops that one or more others replace, which compute the same (:mod:`go_opt.env.rewrites`)."""

    rule: str
    ops: tuple[str, ...]  # by name, in the order that the rule says


class NamedState(NamedTuple):
    """A pair of tensors by name, as importers and files give it."""

    read: str
    next: str
    scope: Scope


class OpRule(NamedTuple):
    """The sharding rule of an op, and the tensors of its operands and results."""

    rule: Rule
    operands: tuple[int, ...]  # tensors, in the order of the rule; one may occur twice
    results: tuple[int, ...]

    def accesses_of(self, tensor: int) -> list[Access]:
        """How the op sees a tensor that it reads, for each operand that is this tensor."""
        read = zip(self.operands, self.rule.operands, strict=True)
        return [access for k, access in read if k == tensor]


@dataclass(frozen=True, eq=False)
class Graph:
    """A model as ops and tensors; build one with :class:`go_opt.model.builder.GraphBuilder`.

    Ops are in topological order. A tensor with several readers is one tensor.
    Views (Reshape, Squeeze, …) do not appear: they are aliases of their source.
    """

    name: str
    op_names: tuple[str, ...]  # [N] unique
    op_types: tuple[str, ...]  # [N] ONNX names where the op has one ("MatMul", "Add")
    op_class: CodeArray  # [N] index into OP_CLASSES
    op_flops: FloatArray  # [N] floating-point operations, 2 per multiply-add
    op_dtype: CodeArray  # [N] index into DTYPES, the type of the computation
    tensor_names: tuple[str, ...]  # [K] unique
    tensor_elements: LongArray  # [K]
    tensor_dtype: CodeArray  # [K] index into DTYPES
    tensor_kind: CodeArray  # [K] index into TENSOR_KINDS
    tensor_producer: IntArray  # [K] op, or NO_PRODUCER for weights and inputs
    tensor_is_output: BoolArray  # [K] True if the host reads the tensor
    reader_ptr: LongArray  # [K + 1] CSR row pointers of the next two arrays
    reader_op: IntArray  # [R] ops that read tensor k, ascending and unique in a row
    reader_elements: LongArray  # [R] elements that the reader touches
    measured_s: Mapping[str, FloatArray] = field(default_factory=dict)  # kind -> [N], NaN: not measured
    excluded: Mapping[str, BoolArray] = field(default_factory=dict)  # kind -> [N], True: cannot run there
    bindings: Bindings = NO_BINDINGS  # with which the model was loaded
    precision: Precision = "native"
    states: tuple[State, ...] = ()
    # Sequences in flight that the graph is costed for; a decision of the plan, and not in the fingerprint.
    sequences: int = 1
    # States that the host keeps: each step reads an input and leaves an output in their place. They are a
    # decision of the plan too; the fingerprint stays that of the graph as sent.
    host_states: tuple[NamedState, ...] = ()
    rewrites: tuple[
        Rewrite, ...
    ] = ()  # that were applied to the graph as sent: a decision of the plan as well
    sent_fingerprint: str = (
        ""  # of the graph without rewrites and with all states on chips; empty: of this one
    )
    # The fields below are not part of the fingerprint: rules follow from what the ops are.
    op_rules: tuple[OpRule | None, ...] = ()  # [N], or empty if no rule is known
    nodes_without_op: tuple[NodeWithoutOp, ...] = ()  # set by the importer
    unknown_ops: tuple[UnknownOp, ...] = ()  # set by the importer
    unpaired_states: tuple[str, ...] = ()  # inputs that look like states, and are none; set by the importer

    def __repr__(self) -> str:
        return (
            f"Graph({self.name!r}: {self.num_ops} ops, {self.num_edges} edges, "
            f"{self.op_flops.sum() / 1e9:.4g} GFLOP, {self.precision})"
        )

    @property
    def num_ops(self) -> int:
        return len(self.op_names)

    @property
    def num_tensors(self) -> int:
        return len(self.tensor_names)

    @property
    def num_edges(self) -> int:
        return int(self.edge_src.shape[0])

    @cached_property
    def op_index(self) -> Mapping[str, int]:
        """Op name -> index."""
        return MappingProxyType({name: i for i, name in enumerate(self.op_names)})

    def ops_named(self, beginning: str) -> list[int]:
        """The ops whose names begin like that."""
        names = self._sorted_names
        behind = islice(names, bisect_left(names, (beginning,)), None)
        return sorted(op for _, op in takewhile(lambda one: one[0].startswith(beginning), behind))

    @cached_property
    def _sorted_names(self) -> list[tuple[str, int]]:
        return sorted((name, op) for op, name in enumerate(self.op_names))

    @cached_property
    def tensor_index(self) -> Mapping[str, int]:
        """Tensor name -> index."""
        return MappingProxyType({name: i for i, name in enumerate(self.tensor_names)})

    @cached_property
    def reader_tensor(self) -> IntArray:
        """[R] the tensor of each read (the row of each CSR entry)."""
        counts = np.diff(self.reader_ptr)
        return np.repeat(np.arange(self.num_tensors, dtype=np.int32), counts)

    @cached_property
    def op_reads(self) -> tuple[LongArray, IntArray]:
        """CSR over ops: ``(ptr[N + 1], read[R])``, the indices of each op's reads."""
        pointers, by_op = csr(self.reader_op, self.num_ops)
        return pointers, by_op.astype(np.int32)

    @cached_property
    def reads_activations(self) -> BoolArray:
        """[N] True for ops that read elements of nothing else; of a state they touch, they may read none."""
        is_given = (self.tensor_kind[self.reader_tensor] != ACTIVATION) & (self.reader_elements > 0)
        reads_given = np.zeros(self.num_ops, np.bool_)
        reads_given[self.reader_op[is_given]] = True
        return ~reads_given

    @cached_property
    def op_outputs(self) -> tuple[LongArray, IntArray]:
        """CSR over ops: ``(ptr[N + 1], tensor[...])``, the tensors each op produces."""
        produced = np.flatnonzero(self.tensor_producer != NO_PRODUCER).astype(np.int32)
        pointers, by_op = csr(self.tensor_producer[produced], self.num_ops)
        return pointers, produced[by_op]

    def rule_of(self, op: int) -> OpRule | None:
        """The sharding rule of an op; None if it is not known."""
        return self.op_rules[op] if self.op_rules else None

    def known_rule_of(self, op: int) -> OpRule:
        """The sharding rule of an op that has one, as every op that is split."""
        row = self.rule_of(op)
        assert row is not None, f"op {self.op_names[op]!r} has no rule."
        return row

    def has_type(self, test: Callable[[str], bool]) -> BoolArray:
        """[N] True for ops whose type passes ``test``, which is called once for each type."""
        passes = {name: test(name) for name in set(self.op_types)}
        return np.array([passes[name] for name in self.op_types], np.bool_)

    def reads_of(self, op: int) -> list[tuple[int, int]]:
        """The tensors that an op reads, each with the elements it touches."""
        pointers, by_op = self.op_reads
        rows = by_op[pointers[op] : pointers[op + 1]]
        return list(zip(self.reader_tensor[rows].tolist(), self.reader_elements[rows].tolist(), strict=True))

    def outputs_of(self, op: int) -> list[int]:
        """The tensors that an op produces."""
        pointers, tensors = self.op_outputs
        outputs: list[int] = tensors[pointers[op] : pointers[op + 1]].tolist()
        return outputs

    def readers_of(self, tensor: int) -> list[int]:
        """The ops that read a tensor, ascending."""
        readers: list[int] = self.reader_op[self.reader_ptr[tensor] : self.reader_ptr[tensor + 1]].tolist()
        return readers

    def measured_of(self, op: int) -> dict[str, float]:
        """Measured seconds of an op, by each chip kind with a measurement."""
        return {kind: float(row[op]) for kind, row in self.measured_s.items() if not np.isnan(row[op])}

    def excluded_of(self, op: int) -> list[str]:
        """The chip kinds that cannot run an op."""
        return [kind for kind, row in self.excluded.items() if row[op]]

    @cached_property
    def _edges(self) -> IntArray:
        producer = self.tensor_producer[self.reader_tensor]
        has_producer = producer != NO_PRODUCER
        pairs = np.stack([producer[has_producer], self.reader_op[has_producer]], axis=1)
        return np.unique(pairs, axis=0) if len(pairs) else pairs.reshape(0, 2)

    @property
    def edge_src(self) -> IntArray:
        """[E] producers, one entry for each pair of ops that share a tensor."""
        return self._edges[:, 0]

    @property
    def edge_dst(self) -> IntArray:
        """[E] readers, parallel to :attr:`edge_src`."""
        return self._edges[:, 1]

    @cached_property
    def successors(self) -> tuple[LongArray, IntArray]:
        """CSR over ops: ``(ptr[N + 1], op[E])``, the readers of each op's tensors."""
        pointers, by_producer = csr(self.edge_src, self.num_ops)
        return pointers, self.edge_dst[by_producer]

    @cached_property
    def predecessors(self) -> tuple[LongArray, IntArray]:
        """CSR over ops: ``(ptr[N + 1], op[E])``, the producers each op reads from."""
        pointers, by_reader = csr(self.edge_dst, self.num_ops)
        return pointers, self.edge_src[by_reader]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that names an op or affects its cost; excludes the graph's own name."""
        if self.sent_fingerprint:
            return self.sent_fingerprint
        digest = hashlib.sha256(b"go_opt.v1.Graph")
        for names in (self.op_names, self.op_types, self.tensor_names, DTYPES):
            digest.update("\0".join(names).encode() + b"\1")
        for column in fields(self):
            if isinstance(array := getattr(self, column.name), np.ndarray):
                digest.update(np.ascontiguousarray(array).tobytes() + b"\2")
        for mapping in (self.measured_s, self.excluded):
            for kind in sorted(mapping):
                digest.update(kind.encode() + b"\3" + mapping[kind].tobytes())
            digest.update(b"\4")
        digest.update(self.precision.encode())
        for state in self.states:
            digest.update(repr((state.read, state.next, state.scope)).encode())
        return digest.hexdigest()

    def has_scope(self, scope: Scope) -> bool:
        """Whether some state, on the chips or the host, has this scope."""
        return scope in (state.scope for of in (self.states, self.host_states) for state in of)


_made_from: Final[WeakKeyDictionary[Graph, Graph]] = WeakKeyDictionary()


def with_sequences(graph: Graph, sequences: int) -> Graph:
    """The graph as it is costed with so many sequences in flight; the same object for the same number."""
    return _with_sequences(_made_from.get(graph, graph), sequences)


@lru_cache(maxsize=32)
def _with_sequences(graph: Graph, sequences: int) -> Graph:
    if graph.sequences == sequences:
        return graph
    made = replace(graph, sequences=sequences)
    _made_from[made] = graph
    return made


def with_op_rules(graph: Graph, rules: Sequence[OpRule | None]) -> Graph:
    """The graph with the sharding rules of its ops [N].

    Raises:
      GraphError: a rule does not fit its op or tensors; the message names the op.
    """
    if not any(row is not None for row in rules):
        return graph
    elements = graph.tensor_elements.tolist()
    read_pointers, by_op = graph.op_reads
    reads, starts = graph.reader_tensor[by_op].tolist(), read_pointers.tolist()
    pointers, outputs = (column.tolist() for column in graph.op_outputs)
    known: dict[int, tuple[str, list[int]]] = {}  # by identity: many ops share a rule, slow to hash
    for op, row in enumerate(rules):
        if row is None:
            continue
        if id(row.rule) not in known:
            fault = fault_of(row.rule)
            sizes = [] if fault else [math.prod(row.rule.shape(access)) for access in row.rule.results]
            known[id(row.rule)] = fault, sizes
        read, written = reads[starts[op] : starts[op + 1]], outputs[pointers[op] : pointers[op + 1]]
        if fault := _misfit(row, read, written, elements, *known[id(row.rule)]):
            raise GraphError(f"op {graph.op_names[op]!r}: rule{fault}.", field="rule")
    return replace(graph, op_rules=tuple(rules))


def _misfit(
    row: OpRule, read: list[int], outputs: list[int], elements: list[int], fault: str, of_results: list[int]
) -> str:
    """In what a rule does not fit its op, whose reads and outputs are given; empty if it fits."""
    rule = row.rule
    if len(rule.operands) != len(row.operands) or len(rule.results) != len(row.results):
        return " must have an access for each operand and result"
    if not set(read).issuperset(row.operands):
        return " names an operand that the op does not read"
    # A tensor without elements may stand beside them, which only puts ops in order.
    written = [k for k in outputs if elements[k] > 0 or k in row.results]
    if sorted(row.results) != written:
        return " must have the results that the op writes"
    if fault:
        return f": {fault}"
    for k, size in zip(row.results, of_results, strict=True):
        if size != elements[k]:
            return f": a result has not its {elements[k]} elements"
    return ""


def by_kind(rows: Sequence[Mapping], missing: float | bool, dtype: type) -> Mapping[str, NDArray]:
    """For each chip kind in any row, a column over all ops; ``missing`` fills the gaps."""
    kinds = sorted({kind for row in rows if row for kind in row})
    return MappingProxyType({kind: frozen([row.get(kind, missing) for row in rows], dtype) for kind in kinds})


def check_number(what: str, value: float, limit: float) -> None:
    """Raise GraphError unless ``value`` is a number from 0 to ``limit``."""
    if type(value) in (int, float) and 0 <= value <= limit:  # NaN fails every comparison
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise GraphError(f"{what} must be a number, not {value!r}.")
    if not 0 <= value <= limit:
        raise GraphError(f"{what} must be between 0 and {limit:.4g}, not {str(value)[:40]}.")


@lru_cache(maxsize=16)
def tensor_shapes(graph: Graph) -> Mapping[int, Shape]:
    """The dimensions of tensors that all ops with a rule see.

    A tensor that some op sees in part, or whose rows are no axis for some op, is left out.
    """
    seen: dict[int, dict[Shape, None]] = {}
    for row in graph.op_rules:
        if row is not None:
            tensors, accesses = row.operands + row.results, row.rule.operands + row.rule.results
            for k, access in zip(tensors, accesses, strict=True):
                seen.setdefault(k, {})[row.rule.shape(access)] = None
    elements = graph.tensor_elements.tolist()
    shapes = {k: common_shape(views) for k, views in seen.items()}
    return MappingProxyType(
        {k: shape for k, shape in shapes.items() if shape and math.prod(shape) == elements[k]}
    )


def common_shape(shapes: Iterable[Shape]) -> Shape:
    """The axes that all views of a tensor have; () unless its rows are an axis of each of them.

    An axis is known by the numbers of blocks before it and of elements along it, which a reshaping of other
    axes does not change: the tokens of ``[1, T, H * W]`` are those of ``[1, T, H, W]``.
    """
    shape, *others = found = list(dict.fromkeys(shapes))
    if not others:
        return shape
    if len({math.prod(one) for one in found}) > 1:  # some op reads a part
        return ()
    stops = sorted(set.intersection(*({1, *accumulate(one, mul)} for one in found)))
    common = tuple(after // before for before, after in pairwise(stops) if before)
    return common if len(common) > 1 and all(row_axis(one, common) is not None for one in found) else ()


def row_axis(view: Shape, shape: Shape) -> int | None:
    """The axis of a view along which the rows lie, the second-to-last axis of ``shape``; None if none is."""
    if len(shape) < 2:
        return None
    if view == shape:
        return len(view) - 2
    outer, number = math.prod(shape[:-2]), shape[-2]
    before = accumulate(view, mul, initial=1)
    found = (i for i, blocks in enumerate(before) if blocks == outer and view[i : i + 1] == (number,))
    return next(found, None)

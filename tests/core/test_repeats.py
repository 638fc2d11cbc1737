"""Repeated blocks: by hand, against an oracle that compares all, on stacks of known structure, on the zoo."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.env import load_zoo
from go_opt.model.builder import GraphBuilder
from go_opt.model.graph import NO_PRODUCER, Graph
from go_opt.model.repeats import Repeat, find_repeats
from tests.strategies import examples, random_graph, seeds

Op = tuple[str, int, tuple[int, ...]]  # op type, elements written, ops back that it reads (0: the mask)


def stack(prologue: list[Op], block: list[Op], blocks: int, epilogue: list[Op] = ()) -> Graph:  # type: ignore[assignment]
    """Ops one after another; each ``MatMul`` has a weight of its own."""
    b = GraphBuilder("stack")
    b.add_tensor("input", 7, "float32", "input")
    b.add_tensor("mask", 3, "float32", "input")
    tensors = ["input"]
    for op_type, elements, back in [*prologue, *block * blocks, *epilogue]:
        i = len(tensors)
        reads = [("mask" if hops == 0 else tensors[max(0, i - hops)], None) for hops in back]
        if op_type == "MatMul":
            b.add_tensor(f"w{i}", 50, "float32", "weight")
            reads.append((f"w{i}", None))
        b.add_op(
            f"op{i - 1}",
            op_type,
            "matrix" if op_type == "MatMul" else "vector",
            flops=elements,
            dtype="float32",
            reads=reads,
            writes=[(f"t{i}", elements, "float32")],
        )
        tensors.append(f"t{i}")
    b.mark_output(tensors[-1])
    return b.build()


BLOCK: list[Op] = [("MatMul", 10, (1,)), ("Softmax", 10, (1, 0)), ("MatMul", 10, (1,)), ("Add", 10, (1, 4))]


def test_a_stack_of_layers_by_hand() -> None:
    graph = stack(
        [("Gather", 10, (1,)), ("Relu", 20, (1,)), ("Tanh", 10, (1,))], BLOCK, 5, [("Exp", 4, (1,))]
    )
    (repeat,) = find_repeats(graph)
    assert repeat == Repeat(first_op=3, ops_per_block=4, blocks=5)
    assert repeat.end == 23
    assert list(repeat.block(4)) == [19, 20, 21, 22]


def test_a_layer_that_reads_another_far_tensor_ends_the_run() -> None:
    odd: list[Op] = [*BLOCK[:-1], ("Add", 10, (1, 9))]
    graph = stack([("Exp", 10, (1,))] * 3, [*BLOCK * 3, *odd, *BLOCK * 3], 1, [("Tanh", 4, (1,))])
    blocks = [repeat for repeat in find_repeats(graph) if repeat.ops_per_block == 4]
    assert [(repeat.first_op, repeat.blocks) for repeat in blocks] == [(3, 3), (19, 3)]


def test_sizes_types_and_work_tell_blocks_apart() -> None:
    wider: list[Op] = [(kind, 2 * elements, back) for kind, elements, back in BLOCK]
    graph = stack([("Exp", 10, (1,))], [*BLOCK * 3, *wider * 4], 1, [("Tanh", 4, (1,))])
    # The first wide layer reads narrow tensors, up to its last op.
    assert find_repeats(graph) == (Repeat(1, 4, 3), Repeat(17, 4, 3))


def test_a_shared_weight_is_the_same_tensor_for_all() -> None:
    b = GraphBuilder("unrolled")
    b.add_tensor("x0", 10, "float32", "input")
    b.add_tensor("w", 100, "float32", "weight")
    for i in range(6):
        for kind, source in (("MatMul", f"x{i}"), ("Tanh", f"y{i}")):
            reads = [(source, None), *([("w", None)] if kind == "MatMul" else [])]
            written = f"y{i}" if kind == "MatMul" else f"x{i + 1}"
            b.add_op(
                f"{kind}{i}",
                kind,
                "matrix" if kind == "MatMul" else "vector",
                flops=10,
                dtype="float32",
                reads=reads,
                writes=[(written, 10, "float32")],
            )
    b.mark_output("x6")
    # The first step reads the input, and what the last writes is the output.
    assert find_repeats(b.build()) == (Repeat(1, 2, 5),)


def test_one_op_has_no_repeat() -> None:
    assert find_repeats(stack([("Exp", 10, (1,))], BLOCK, 0)) == ()


@settings(max_examples=examples(100))
@given(seeds)
def test_stacks_of_known_structure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = _random_block(rng, int(rng.integers(3, 12)))
    # Sizes that no block has, so that nothing around the stack looks like a layer of it.
    prologue: list[Op] = [("Gather", 1000 + i, (1,)) for i in range(int(rng.integers(0, 6)))]
    epilogue: list[Op] = [("Exp", 2000 + i, (1,)) for i in range(int(rng.integers(0, 6)))]
    blocks = int(rng.integers(3, 9))
    graph = stack(prologue, block, blocks, epilogue)
    largest = max(find_repeats(graph), key=lambda repeat: repeat.end - repeat.first_op)
    # The first layer may read what stands before the stack from elsewhere than the others.
    assert largest.ops_per_block == len(block)
    assert largest.blocks >= blocks - 2
    assert largest.first_op >= len(prologue)
    assert largest.end <= len(prologue) + blocks * len(block)


@settings(max_examples=examples(150))
@given(seeds)
def test_every_repeat_holds_by_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = (
        random_graph(rng, int(rng.integers(1, 40)), max_elements=3)
        if rng.random() < 0.5
        else stack([], _random_block(rng, 3) * 2, int(rng.integers(1, 6)), _random_block(rng, 5))
    )
    repeats = find_repeats(graph)
    covered = [op for repeat in repeats for op in range(repeat.first_op, repeat.end)]
    assert covered == sorted(set(covered))
    for repeat in repeats:
        assert repeat.blocks >= 2
        assert 0 <= repeat.first_op < repeat.end <= graph.num_ops
        for op in range(repeat.first_op, repeat.end - repeat.ops_per_block):
            assert _matches(graph, op, op + repeat.ops_per_block)
    if graph.num_ops <= 20:
        longest = max((end - start for start, end in _runs_by_oracle(graph)), default=0)
        assert max((repeat.end - repeat.first_op for repeat in repeats), default=0) == longest


@pytest.mark.parametrize(
    ("name", "ops_per_block", "blocks"),
    [
        ("bert_base", 26, 11),
        ("vit_b16", 26, 12),
        ("smollm2_135m", 50, 30),
        ("swin_t", 70, 3),
        ("resnet50", 16, 5),
        ("rnnlm_2x2048", 27, 191),
    ],
)
def test_zoo_graphs(name: str, ops_per_block: int, blocks: int) -> None:
    largest = max(find_repeats(load_zoo(name)), key=lambda repeat: repeat.end - repeat.first_op)
    assert (largest.ops_per_block, largest.blocks) == (ops_per_block, blocks)


# --------------------------------------------------------------------------- the slow, obvious twin


def _random_block(rng: np.random.Generator, num_ops: int) -> list[Op]:
    """A layer that no shorter period divides: its last op is of a type that it has once."""
    kinds = ("MatMul", "Relu", "Add", "Mul")
    block: list[Op] = []
    for _ in range(num_ops - 1):
        back = tuple(sorted({1, int(rng.integers(0, num_ops))}))
        block.append((str(rng.choice(kinds)), int(rng.integers(1, 4)), back))
    return [*block, ("Sigmoid", 5, (1,))]


def _matches(graph: Graph, first: int, second: int) -> bool:
    """Whether two ops are alike and read alike, tensor for tensor."""
    if _op(graph, first) != _op(graph, second):
        return False
    ours, theirs = _reads(graph, first), _reads(graph, second)
    return len(ours) == len(theirs) and all(
        size == other_size and (hops == other_hops or k == other_k)
        for (size, hops, k), (other_size, other_hops, other_k) in zip(ours, theirs, strict=True)
    )


def _op(graph: Graph, op: int) -> tuple[object, ...]:
    out_ptr, outputs = graph.op_outputs
    written = [_tensor(graph, int(k)) for k in outputs[out_ptr[op] : out_ptr[op + 1]]]
    return (
        graph.op_types[op], graph.op_class[op], graph.op_flops[op], graph.op_dtype[op], sorted(written)
    )  # fmt: skip


def _tensor(graph: Graph, k: int) -> tuple[int, ...]:
    out_ptr, outputs = graph.op_outputs
    producer = int(graph.tensor_producer[k])
    slot = -1 if producer < 0 else int(np.flatnonzero(outputs[out_ptr[producer] :] == k)[0])
    fields = (graph.tensor_elements, graph.tensor_dtype, graph.tensor_kind, graph.tensor_is_output)
    return (slot, *(int(field[k]) for field in fields))


def _reads(graph: Graph, op: int) -> list[tuple[tuple[int, ...], int, int]]:
    """Size, ops back and number of what an op reads, the nearest of a size first."""
    read_ptr, reads = graph.op_reads
    found = []
    for r in reads[read_ptr[op] : read_ptr[op + 1]].tolist():
        k = int(graph.reader_tensor[r])
        source = int(graph.tensor_producer[k])
        if source == NO_PRODUCER:
            source = int(graph.reader_op[graph.reader_ptr[k]])
        found.append(((*_tensor(graph, k), int(graph.reader_elements[r])), op - source, k))
    return sorted(found)


def _runs_by_oracle(graph: Graph) -> Iterator[tuple[int, int]]:
    """The whole blocks of every run of every period."""
    for period in range(1, graph.num_ops // 2 + 1):
        start = None
        for op in range(graph.num_ops - period + 1):
            if op < graph.num_ops - period and _matches(graph, op, op + period):
                start = op if start is None else start
                continue
            if start is not None and op - start >= period:
                yield start, start + (op + period - start) // period * period
            start = None

"""Slicing of blocks that may be divided: a case by hand, and random ones against all their slicings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from go_opt.solver.slicing.divided import CLOSE, DividedSlicing, Pieces, Room, slice_divided
from tests.strategies import examples, seeds

Stage = tuple[int, list[int]]  # its chips, and its pieces


def pieces_of(*segments: list[list[float]], sent_s: float = 0.5, state_bytes: float = 0.0) -> Pieces:
    """Pieces by the seconds of each in each option of each segment; those of two options are divided."""
    options = [option for segment in segments for option in segment]
    work_s = np.array([seconds for option in options for seconds in option])
    return Pieces(
        np.cumsum([0, *(len(segment) for segment in segments)]),
        np.cumsum([0, *(len(option) for option in options)]),
        np.array([i > 0 for segment in segments for i in range(len(segment))]),
        work_s,
        np.ones(len(work_s)),
        np.full(len(work_s), state_bytes),
        np.full(len(work_s), 0.25),
        np.full(len(work_s), sent_s),
    )


def costs(pieces: Pieces, room: Room, option: list[int], stages: list[Stage]) -> tuple[float, float]:
    """The largest load and the latency of a slicing, infinite if it does not fit."""
    load_s, latency_s = 0.0, pieces.sent_s[[of[0] for _, of in stages[1:]]].sum()
    if sum(chips for chips, _ in stages) > room.num_chips:
        return math.inf, math.inf
    for chips, of in stages:
        held = math.ceil(room.sequences / chips)
        if pieces.weight_bytes[of].sum() + held * pieces.state_bytes[of].sum() > room.chip_bytes - 0.25:
            return math.inf, math.inf
        load_s = max(load_s, pieces.work_s[of].sum() * held / room.sequences)
    for one in option:
        inside = set(range(pieces.piece_ptr[one], pieces.piece_ptr[one + 1]))
        shares_s = [pieces.work_s[[i for i in of if i in inside]].sum() for _, of in stages]
        latency_s += max(shares_s) if pieces.is_divided[one] else sum(shares_s)
    return load_s, latency_s


def slicings(pieces: Pieces, room: Room) -> Iterator[tuple[list[int], list[Stage]]]:
    """All options, cuts and numbers of replicas."""
    segments = itertools.pairwise(pieces.option_ptr.tolist())
    for option in itertools.product(*(range(a, b) for a, b in segments)):
        taken = [i for one in option for i in range(pieces.piece_ptr[one], pieces.piece_ptr[one + 1])]
        for count in range(min(len(taken), room.num_chips)):
            for cuts in itertools.combinations(range(1, len(taken)), count):
                runs = [taken[a:b] for a, b in itertools.pairwise((0, *cuts, len(taken)))]
                if not np.isfinite(pieces.sent_s[[run[0] for run in runs[1:]]]).all():
                    continue
                most = min(room.most_replicas, room.sequences, room.num_chips)
                for sizes in itertools.product(range(1, most + 1), repeat=len(runs)):
                    yield list(option), list(zip(sizes, runs, strict=True))


def stages_of(found: DividedSlicing) -> list[Stage]:
    stages: dict[int, Stage] = {}
    for piece, chip, size in zip(found.piece, found.first_chip, found.replicas, strict=True):
        stages.setdefault(int(chip), (int(size), []))[1].append(int(piece))
    return list(stages.values())


def test_a_block_is_divided_where_a_stage_ends() -> None:
    """Of 3, 6 and 3 seconds on two chips only halves of the 6 make loads of 6, with 0.25 for each part."""
    pieces = pieces_of([[3.0]], [[6.0], [3.25, 3.25]], [[3.0]])
    found = slice_divided(pieces, Room(2, 10.0, 8, 1), 5.0, 12.0)
    assert found is not None
    assert found.option.tolist() == [0, 2, 3]
    assert found.first_chip.tolist() == [0, 0, 1, 1]
    assert 6.25 <= found.interval_s <= 6.25 * (1 + CLOSE)
    assert found.latency_s == pytest.approx(3.0 + 0.5 + 3.25 + 3.0), "the halves run beside each other"


def test_whole_blocks_on_replicas_need_more_memory() -> None:
    """Two chips with all weights have loads of 6 without a part, each with half of the sequences."""
    pieces = pieces_of([[3.0]], [[6.0], [3.25, 3.25]], [[3.0]], state_bytes=1.0)
    found = slice_divided(pieces, Room(2, 0.25 + 3.0 + 4 * 3, 8, 2), 5.0, 12.0)
    assert found is not None
    assert found.replicas.tolist() == [2, 2, 2]
    assert slice_divided(pieces, Room(2, 0.2 + 3.0 + 4 * 3, 8, 2), 5.0, 6.2) is None


def test_sequences_wait_for_their_latency() -> None:
    pieces = pieces_of([[3.0]], [[6.0], [3.25, 3.25]], [[3.0]])
    room = Room(2, 10.0, 1, 1)
    assert slice_divided(pieces, room, 5.0, 9.7) is None, "12.5 seconds, less 3.25 beside, and a transfer"
    assert slice_divided(pieces, room, 5.0, 9.8) is not None
    assert slice_divided(pieces, room._replace(latency_scale=1.1), 5.0, 9.8) is None


@settings(max_examples=examples(60))
@given(seed=seeds, sequences=st.integers(1, 6))
def test_no_slicing_of_random_pieces_is_better(seed: int, sequences: int) -> None:
    """What is found costs what it says, and is never below the best of all slicings."""
    rng = np.random.default_rng(seed)
    segments: list[list[list[float]]] = []
    for _ in range(int(rng.integers(1, 4))):
        whole = rng.uniform(0.2, 3.0, rng.integers(1, 3)).tolist()
        parts = [seconds / 2 + 0.1 for seconds in whole] * 2
        segments.append([whole, parts] if rng.random() < 0.6 else [whole])
    pieces = pieces_of(*segments, sent_s=0.2, state_bytes=0.3)
    pieces.sent_s[rng.random(len(pieces.sent_s)) < 0.2] = math.inf
    room = Room(int(rng.integers(1, 4)), float(rng.uniform(2.0, 8.0)), sequences, int(rng.integers(1, 3)))
    best_s = math.inf
    for option, stages in slicings(pieces, room):
        load_s, latency_s = costs(pieces, room, option, stages)
        best_s = min(best_s, max(load_s, latency_s / sequences))
    found = slice_divided(pieces, room, 0.01, 50.0)
    if found is None:
        return
    load_s, latency_s = costs(pieces, room, found.option.tolist(), stages_of(found))
    assert found.latency_s == pytest.approx(latency_s)
    assert max(load_s, latency_s / sequences) <= found.interval_s * (1 + 1e-9)
    assert found.interval_s >= best_s * (1 - 1e-9)


def test_most_random_cases_are_solved_nearly_exactly() -> None:
    """Without a bound on memory, a stage that goes as far as it can loses nothing but latency."""
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        segments: list[list[list[float]]] = []
        for _ in range(3):
            whole = rng.uniform(0.2, 3.0, rng.integers(1, 3)).tolist()
            segments.append([whole, [seconds / 2 + 0.1 for seconds in whole] * 2])
        pieces, room = pieces_of(*segments, sent_s=0.1), Room(3, 100.0, 8, 2)
        values = (costs(pieces, room, *one) for one in slicings(pieces, room))
        best_s = min(max(load_s, latency_s / room.sequences) for load_s, latency_s in values)
        found = slice_divided(pieces, room, 0.01, 50.0)
        assert found is not None
        ratios.append(found.interval_s / best_s)
    assert sum(ratio <= 1 + 2 * CLOSE for ratio in ratios) >= 11, sorted(ratios)[-5:]

"""The drawing of a graph: every op is in one box, boxes stand apart, and stages read from left to right."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from go_opt.report.page import subject_of
from go_opt.report.page.drawing import MOST_LANES, Boxes, Drawing, boxes_of, draw
from go_opt.report.page.facts import Subject
from tests.go_opt.report.pages import chain_of, page_rows, random_subject
from tests.strategies import examples, make_plan, seeds, small_mcm, toy_graph


def check_boxes(subject: Subject, boxes: Boxes, most: int) -> None:
    loads = subject.loads
    num_boxes = len(boxes.stage)
    assert sorted(set(boxes.box_of_op.tolist())) == list(range(num_boxes))
    assert num_boxes <= max(most, len(subject.stages)) or boxes.level == "op"
    assert (boxes.stage[boxes.box_of_op] == subject.kernel_stage[loads.kernel_of]).all()
    if boxes.level != "op":
        for kernel in range(len(loads.kernel_chip)):
            assert len(set(boxes.box_of_op[loads.kernel_of == kernel].tolist())) == 1
    pairs = zip(loads.graph.edge_src, loads.graph.edge_dst, strict=True)
    between = {(int(boxes.box_of_op[a]), int(boxes.box_of_op[b])) for a, b in pairs}
    assert [list(pair) for pair in sorted(between) if pair[0] != pair[1]] == boxes.edges.tolist()


def check_drawing(boxes: Boxes, drawing: Drawing) -> None:
    places = list(zip(drawing.x.tolist(), drawing.y.tolist(), strict=True))
    assert len(set(places)) == len(places)
    cells = set()
    for band in drawing.bands:
        assert band.height <= MOST_LANES
        for x in range(band.x, band.x + band.width):
            for y in range(band.y, band.y + band.height):
                assert (x, y) not in cells, "bands overlap"
                cells.add((x, y))
    band_of = {
        place: number
        for number, band in enumerate(drawing.bands)
        for place in places
        if band.x <= place[0] < band.x + band.width and band.y <= place[1] < band.y + band.height
    }
    stages = [drawing.bands[band_of[place]].stage for place in places]
    assert stages == boxes.stage.tolist()
    # Bands follow each other: what reads something of its own stage is further right, or in a later band.
    for source, reader in boxes.edges.tolist():
        if boxes.stage[source] == boxes.stage[reader]:
            before = band_of[places[source]], places[source][0]
            assert before < (band_of[places[reader]], places[reader][0])
    assert [band.stage for band in drawing.bands] == sorted(band.stage for band in drawing.bands)
    assert all(band.y >= 1 for band in drawing.bands), "there is room for the name of a stage"


@settings(max_examples=examples(40))
@given(seed=seeds)
def test_any_drawing(seed: int) -> None:
    subject = random_subject(np.random.default_rng(seed))
    if subject is None:
        return
    for most in (6_000, 20, 6, 3):
        boxes = boxes_of(subject, most)
        check_boxes(subject, boxes, most)
        check_drawing(boxes, draw(boxes))


def test_the_toy_by_hand() -> None:
    """embed -> dense -> relu -> mix -> add -> logits, and embed -> add."""
    graph, target = toy_graph(), small_mcm(2)
    subject = subject_of(graph, target, make_plan(graph, target, [0, 0, 0, 1, 1, 1]), "throughput")
    drawing = draw(boxes_of(subject))
    # Two stages of three columns, each in a row of its own below a lane for its name.
    assert drawing.x.tolist() == [0, 1, 2, 0, 1, 2]
    assert drawing.y.tolist() == [1, 1, 1, 3, 3, 3]
    assert drawing.bands == ((0, 0, 1, 3, 1), (1, 0, 3, 3, 1))


def test_a_wide_layer_takes_several_columns() -> None:
    """One op that 25 read, which are read by none."""
    graph = chain_of("first")
    assert graph.num_ops == 1
    boxes = Boxes(
        "op",
        np.arange(26, dtype=np.int32),
        np.zeros(26, np.int32),
        np.array([[0, i] for i in range(1, 26)], np.int32),
        1,
    )
    drawing = draw(boxes)
    check_drawing(boxes, drawing)
    assert sum(band.width for band in drawing.bands) == 1 + 3  # 10, 10 and 5 lanes


def test_a_long_chain_is_about_as_wide_as_a_screen() -> None:
    edges = np.array(list(pairwise(range(1000))), np.int32)
    boxes = Boxes("op", np.arange(1000, dtype=np.int32), np.zeros(1000, np.int32), edges, 1)
    drawing = draw(boxes)
    check_drawing(boxes, drawing)
    assert 1.3 <= drawing.width * 2.5 / drawing.height <= 1.9


@pytest.mark.parametrize(
    ("most", "level", "words"),
    [(6, "op", ""), (5, "kernel", "a box is a kernel"), (3, "kernels", "up to 5 successive kernels")],
)
def test_what_is_left_out_is_said(most: int, level: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, target = toy_graph(), small_mcm(2)
    plan = make_plan(graph, target, [0, 0, 0, 0, 0, 1], fusion_group=[0, 1, 1, 2, 3, 4])
    monkeypatch.setattr("go_opt.report.page.page.boxes_of", lambda subject: boxes_of(subject, most))
    data = page_rows(subject_of(graph, target, plan, "throughput"), inferences=2)
    assert data["graph"]["level"] == level
    assert len(data["graph"]["x"]) <= most
    assert len(data["ops"]["name"]) == 6, "every op can be searched"
    notes = data["notes"]["graph"]
    assert (words in notes[0] and "6 ops" in notes[0]) if words else notes == []

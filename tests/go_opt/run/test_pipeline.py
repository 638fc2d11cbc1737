"""Plans that run: results, order, replicas, links, and a clear end whatever happens."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from typer.testing import CliRunner

import go_opt
from go_opt import from_onnx
from go_opt.cli.app import app
from go_opt.env import load_target
from go_opt.errors import EnvironmentFailedError, InvalidInputError, ModelError
from go_opt.model.codecs.plan_json import save_plan
from go_opt.model.plan import Plan, Relay
from go_opt.run.export.exporting import export
from go_opt.run.manifest import Manifest, load_manifest
from go_opt.run.pipeline import running
from go_opt.run.pipeline.check import difference, random_inputs, save_arrays
from go_opt.run.pipeline.layout import HOST, Layout, Links, write_links
from go_opt.run.pipeline.results import OutputsDifferError, StageRun, chip_seconds
from go_opt.run.pipeline.workers import Workers, started
from tests.exports import FLOAT, INT64, info, integers, model, node, plan_of, saved, weight
from tests.go_opt.run.test_random_stages import with_random_weights

Ids = list[tuple[int, ...]]


ROWS = [{"x": np.ones((8, 8), np.float32)}]  # of inputs of `chain`


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """Products a, b, c, d in a row; d adds the input again, which it reads late."""
    nodes = [
        node("MatMul", "x w", "a", "a"),
        node("MatMul", "a w", "b", "b"),
        node("MatMul", "b w", "c", "c"),
        node("Add", "c x", "y", "d"),
    ]
    return saved(model(nodes, [info("x", [8, 8])], [info("y", [8, 8])], [weight("w", 8, 8)]), tmp_path)


@pytest.fixture
def process_ids(monkeypatch: pytest.MonkeyPatch) -> Ids:
    """The ids of the workers of each run, noted as it ends; and nothing of a run is left."""
    ids: Ids = []
    end = Workers.end

    def note(workers: Workers) -> None:
        ids.append(workers.process_ids)
        end(workers)

    monkeypatch.setattr(Workers, "end", note)
    return ids


def at_feed(monkeypatch: pytest.MonkeyPatch, inference: int, do: Callable[[running._Host], None]) -> None:
    feed = running._Host._feed

    def hooked(host: running._Host, rings: dict[str, int]) -> bool:
        if len(host.fed_s) == inference:
            do(host)
        return feed(host, rings)

    monkeypatch.setattr(running._Host, "_feed", hooked)


def interrupted(host: running._Host) -> None:
    raise KeyboardInterrupt


def check_gone(ids: Ids, count: int) -> None:
    assert [len(row) for row in ids] == [count]
    for process in ids[0]:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_plan_runs_and_is_measured(chain: Path, process_ids: Ids) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    result = go_opt.run_plan(chain, plan_of(chain, [0, 1, 2, 2]), inferences=20)
    check_gone(process_ids, 3)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert [(stage.chips, stage.num_ops) for stage in result.stages] == [((0,), 1), ((1,), 1), ((2,), 2)]
    assert (result.workers, result.inferences) == (3, 20)
    assert all(0 < stage.processor_s < 1 for stage in result.stages)
    assert result.processor_interval_s == max(stage.processor_s for stage in result.stages)
    assert result.latency_s > 0
    assert result.difference < 1e-6


@pytest.mark.parametrize("links", [False, True])
def test_replicas(chain: Path, process_ids: Ids, links: bool) -> None:
    plan = plan_of(chain, [0, 1, 4, 6], "mcm-6x6", replication=[1, 3, 2, 1])
    result = go_opt.run_plan(chain, plan, inferences=25, links=links)
    assert [stage.replication for stage in result.stages] == [1, 3, 2, 1]
    assert [len(row) for row in process_ids] == [7]


@pytest.mark.parametrize("links", [False, True])
def test_relays(tmp_path: Path, links: bool) -> None:
    nodes = [
        node("Relu", "x", "r", "r"),
        node("MatMul", "r w", "a", "a"),
        node("MatMul", "a w", "b", "b"),
        node("Add", "b r", "y", "y"),
    ]
    path = saved(model(nodes, [info("x", [8, 8])], [info("y", [8, 8])], [weight("w", 8, 8)]), tmp_path)
    plan = plan_of(path, [0, 0, 1, 2], "mcm-6x6", relays=[Relay("r", (1,))])
    assert go_opt.run_plan(path, plan, inferences=5, links=links).difference < 1e-6


def test_a_chip_with_several_stages(chain: Path) -> None:
    result = go_opt.run_plan(chain, plan_of(chain, [0, 1, 0, 1]), inferences=10)
    assert ([stage.chips for stage in result.stages], result.workers) == ([(0,), (1,), (0,), (1,)], 2)
    of_chip_0 = result.stages[0].processor_s + result.stages[2].processor_s
    of_chip_1 = result.stages[1].processor_s + result.stages[3].processor_s
    assert result.processor_interval_s == max(of_chip_0, of_chip_1)


def test_a_model_of_others(tmp_path: Path) -> None:
    path = with_random_weights("light_shufflenet", tmp_path)
    num_ops = from_onnx(path).num_ops
    plan = plan_of(path, [4 * op // num_ops for op in range(num_ops)])
    result = go_opt.run_plan(path, plan, inferences=5)
    assert (result.workers, [stage.num_ops for stage in result.stages]) == (4, [43, 42, 43, 42])


def test_the_busiest_chip_by_hand() -> None:
    stages = (
        StageRun(0, (0,), 1, 0.0, 2.0, 0.0),
        StageRun(1, (1, 2), 1, 0.0, 6.0, 0.0),
        StageRun(2, (0,), 1, 0.0, 0.5, 0.0),
    )
    assert max(chip_seconds(stages).values()) == 3.0
    assert max(chip_seconds(stages[::2]).values()) == 2.5


def test_a_late_reader_has_slots_for_all_under_way(chain: Path, tmp_path: Path) -> None:
    plan = plan_of(chain, [0, 1, 4, 5], "mcm-6x6", replication=[1, 3, 1, 1])
    rings = {ring.tensor: ring for ring in Layout(export(chain, plan, tmp_path / "out"), 9).rings}
    # Depths are 1, 4, 5, 6: x is read at 1 and 6, y leaves at 7.
    assert {name: ring.slots for name, ring in rings.items()} == {"x": 7, "a": 4, "b": 2, "c": 2, "y": 2}
    assert (rings["x"].readers, rings["y"].readers) == ((0, 3), (HOST,))
    ends = sorted((ring.offset, ring.offset + ring.slots * ring.slot_bytes) for ring in rings.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_a_transfer_waits_for_the_one_before(tmp_path: Path) -> None:
    target = load_target("mcm-2x2")  # 16 GB/s and 0.2 us a link
    write_links(target, (0, 1, 2, 3), tmp_path)
    links = Links(tmp_path)
    assert links.arrival_s(0, [1], 16_000, 5.0) == pytest.approx(5.0 + 1e-6 + 0.2e-6, abs=1e-12)
    # Behind that one on link 0, and the host's 64 GB/s are another link.
    assert links.arrival_s(0, [2, 1], 16_000, 5.0) == pytest.approx(5.0 + 3e-6 + 0.4e-6, abs=1e-12)
    assert links.arrival_s(HOST, [3], 64_000, 5.0) == pytest.approx(5.0 + 1e-6, abs=1e-12)
    assert Links(tmp_path / "elsewhere").arrival_s(0, [1], 16_000, 5.0) == 0.0


def test_a_worker_that_is_killed(chain: Path, process_ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    at_feed(monkeypatch, 8, lambda host: os.kill(host.workers.process_ids[1], signal.SIGKILL))
    with pytest.raises(EnvironmentFailedError, match=r"^the worker of chip 1 .* was ended by SIGKILL\.$"):
        go_opt.run_plan(chain, plan_of(chain, [0, 1, 2, 2]), inferences=10_000)
    check_gone(process_ids, 3)


def test_a_worker_that_fails(chain: Path, process_ids: Ids, tmp_path: Path) -> None:
    manifest = export(chain, plan_of(chain, [0, 1, 2, 2]), tmp_path / "out")
    (tmp_path / "out" / "stage-1.onnx").write_bytes(b"damaged")
    with pytest.raises(EnvironmentFailedError, match=r"^the worker of chip 1 failed: .*stage-1.onnx"):
        running.run_stages(chain, tmp_path / "out", manifest, 5, ROWS)
    check_gone(process_ids, 3)


def test_a_worker_ends_when_its_parent_has() -> None:
    with started([0]) as workers:
        (process,) = workers.running.values()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_outputs_are_checked_before_too_many_wait(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_MOST_UNCHECKED", 0)
    waiting: list[int] = []
    for inference in (8, 12):
        at_feed(monkeypatch, inference, lambda host: waiting.append(len(host.unchecked)))
    assert go_opt.run_plan(chain, plan_of(chain, [0, 1, 2, 2]), inferences=20).is_equal
    assert len(waiting) >= 2
    assert not any(waiting)


def test_an_interrupt(chain: Path, process_ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    # No signal: one crashes a process in which another test has run a model in OpenVINO.
    at_feed(monkeypatch, 8, interrupted)
    with pytest.raises(KeyboardInterrupt):
        go_opt.run_plan(chain, plan_of(chain, [0, 1, 2, 2]), inferences=10_000)
    check_gone(process_ids, 3)


def test_memory_that_is_short(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(EnvironmentFailedError, match=r"need .*B of shared memory, .*: No space left"):
        go_opt.run_plan(chain, plan_of(chain, [0, 1, 2, 2]), inferences=5)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_first_tensor_that_differs_is_named(chain: Path, tmp_path: Path) -> None:
    manifest = export(chain, plan_of(chain, [0, 1, 2, 2]), tmp_path / "out")
    stage = onnx.load(tmp_path / "out" / "stage-1.onnx")
    (initializer,) = stage.graph.initializer
    initializer.CopyFrom(numpy_helper.from_array(np.ones((8, 8), np.float32), initializer.name))
    onnx.save(stage, tmp_path / "out" / "stage-1.onnx")
    with pytest.raises(EnvironmentFailedError, match=r"^output 'y' differs .* tensor 'b' of stage 1 is the"):
        running.run_stages(chain, tmp_path / "out", manifest, 5, ROWS)


def test_a_transfer_that_goes_wrong(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturb(host: running._Host) -> None:
        host.inputs[0]["x"][...] += 1

    at_feed(monkeypatch, 8, disturb)
    with pytest.raises(EnvironmentFailedError, match="a transfer went wrong"):
        go_opt.run_plan(chain, plan_of(chain, [0, 1, 2, 2]), inferences=10)


def test_integers_that_choose_rows_are_valid(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "ids flat", "f", "r"),
        node("Gather", "table f", "e", "g"),
        node("Cast", "flag", "c", "cast", to=FLOAT),
        node("Mul", "e c", "y", "m"),
    ]
    given = [info("ids", [2, 50], INT64), info("flag", [1], INT64), info("unread", [3])]
    table = weight("table", 37, 4)
    path = saved(model(nodes, given, [info("y", [100, 4])], [table, integers("flat", 100)]), tmp_path)
    manifest = export(path, plan_of(path, [0, 0, 1]), tmp_path / "out")
    drawn = random_inputs(path, manifest, np.random.default_rng(0))
    assert drawn.keys() == {"ids", "flag"}
    assert (drawn["ids"].min(), drawn["ids"].max(), drawn["ids"].dtype) == (0, 36, np.int64)
    assert go_opt.run_plan(path, plan_of(path, [0, 0, 1]), inferences=5).difference < 1e-6


def test_the_difference_of_tensors() -> None:
    one = np.array([1.0, np.nan, np.inf, 100.0], np.float32)
    assert difference(one, one) == 0
    assert difference(one + np.array([0.001, 0, 0, 0], np.float32), one) == pytest.approx(1e-5, rel=1e-3)
    assert difference(np.array([1.0, 1.0, np.inf, 100.0], np.float32), one) == np.inf
    assert difference(np.array([1, 2]), np.array([1, 3])) == np.inf
    assert difference(np.zeros(3), np.zeros(2)) == np.inf


def test_what_is_refused(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="inferences must be between 2 and"):
        go_opt.run_plan(chain, plan_of(chain, [0, 1, 2, 2]), inferences=1)
    path = saved(casts(TensorProto.FLOAT8E4M3FN), tmp_path, "casts")
    with pytest.raises(ModelError, match="tensor 'a' is of type float8_e4m3fn, which cannot go"):
        go_opt.run_plan(path, plan_of(path, [0, 1]), inferences=5)
    path = saved(casts(TensorProto.BFLOAT16, "Neg"), tmp_path, "negated")  # ONNX Runtime has no such kernel
    with pytest.raises(EnvironmentFailedError, match=r"not run in ONNX Runtime: .*Neg"):
        go_opt.run_plan(path, plan_of(path, [0, 0, 1]), inferences=5)


def casts(elem_type: int, *between: str) -> onnx.ModelProto:
    """To a type, through ops without attributes, and back."""
    nodes = [node("Cast", "x", "a", "a", to=elem_type)]
    for op_type in between:
        nodes.append(node(op_type, nodes[-1].output[0], f"{op_type}_out", op_type))
    nodes.append(node("Cast", nodes[-1].output[0], "y", "b", to=FLOAT))
    return model(nodes, [info("x", [2])], [info("y", [2])])


def test_bfloat16_between_stages_and_at_both_ends(tmp_path: Path) -> None:
    kind = TensorProto.BFLOAT16
    nodes = [node("Cast", "x", "a", "a", to=FLOAT), node("Sigmoid", "a", "b", "b"),
             node("Cast", "b", "c", "c", to=kind), node("Transpose", "c", "y", "y")]  # fmt: skip
    path = saved(model(nodes, [info("x", [2, 3], kind)], [info("y", [3, 2], kind)]), tmp_path)
    ran = go_opt.run_plan(path, plan_of(path, [0, 1, 2, 3]), inferences=5)
    assert (ran.difference, ran.outputs["y"].dtype.name) == (0, "bfloat16")
    save_arrays(tmp_path / "x.npz", {"x": ran.outputs["y"].T.copy()})
    again = go_opt.run_plan(path, plan_of(path, [0, 1, 2, 3]), inferences=5, inputs=tmp_path / "x.npz")
    expected = 1 / (1 + np.exp(-ran.outputs["y"].astype(np.float32)))
    np.testing.assert_allclose(again.outputs["y"].astype(np.float32), expected, rtol=2**-8)


def noisy(folder: Path) -> Path:
    """Sums of large numbers that cancel, so that another order of the terms gives another result."""
    filters = np.random.default_rng(0).normal(size=(16, 16, 3, 3)).astype(np.float32)
    filters -= filters.mean((1, 2, 3), keepdims=True)
    constants = [
        numpy_helper.from_array(filters, "w"),
        numpy_helper.from_array(np.full((1, 16, 1, 1), 1e3, np.float32), "big"),
    ]
    nodes = [
        node("Relu", "x", "r", "relu"),
        node("Add", "r big", "u", "up"),
        node("Conv", "u w", "c", "conv"),
        node("Sigmoid", "c", "s", "sigmoid"),
        node("Conv", "s w", "y", "last"),
    ]
    images = [info("x", (1, 16, 8, 8))], [info("y", (1, 16, 4, 4))]
    return saved(model(nodes, *images, constants), folder, "noisy")


def test_rounding_that_optimisation_changes_is_no_fault_of_the_plan(tmp_path: Path) -> None:
    path = noisy(tmp_path)
    plan = plan_of(path, [0, 0, 1, 1, 2])
    result = go_opt.run_plan(path, plan, inferences=2)
    assert result.is_equal
    assert result.tolerance > 1e-4
    assert go_opt.run_plan(path, plan, inferences=2, tolerance=0.3).tolerance == 0.3
    with pytest.raises(InvalidInputError, match="tolerance must be 0 or more"):
        go_opt.run_plan(path, plan, tolerance=-1.0)


def stages_of_ones(path: Path, plan: Plan, folder: Path) -> tuple[Path, Path, Manifest]:
    """The export, with ones as the filters of the last stage: a plan that computes something else."""
    manifest = export(path, plan, folder / "out")
    stage = onnx.load(folder / "out" / "stage-2.onnx")
    (initializer,) = stage.graph.initializer
    initializer.CopyFrom(numpy_helper.from_array(np.ones((16, 16, 3, 3), np.float32), initializer.name))
    onnx.save(stage, folder / "out" / "stage-2.onnx")
    return path, folder / "out", manifest


def images_of(seed: int) -> dict[str, NDArray]:
    return {"x": np.random.default_rng(seed).normal(size=(1, 16, 8, 8)).astype(np.float32)}


def test_a_wrong_stage_is_found_in_spite_of_the_noise(tmp_path: Path) -> None:
    path = noisy(tmp_path)
    stages = stages_of_ones(path, plan_of(path, [0, 0, 1, 1, 2]), tmp_path)
    with pytest.raises(OutputsDifferError) as caught:
        running.run_stages(*stages, 2, [images_of(0)])
    assert not caught.value.result.is_equal
    assert caught.value.result.wall_interval_s > 0
    assert caught.value.exit_code == 6


def test_the_command_prints_the_times_of_a_plan_whose_outputs_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain: Path
) -> None:
    def disturb(host: running._Host) -> None:
        host.inputs[0]["x"][...] += 1

    save_plan(plan_of(chain, [0, 1, 2, 2]), tmp_path / "p.json")
    for more, start in (([], "toy, planned for"), (["--json"], '{"model"')):
        at_feed(monkeypatch, 8, disturb)
        ran = CliRunner().invoke(app, ["run", str(chain), "--plan", str(tmp_path / "p.json"), *more])
        assert ran.exit_code == 1  # the error itself; `main` makes it an exit code
        assert isinstance(ran.exception, OutputsDifferError)
        assert ran.stdout.startswith(start)


def test_inputs_that_the_plan_binds_reach_the_whole_model(tmp_path: Path) -> None:
    nodes = [
        node("Equal", "rate sixteen", "is_sixteen", "equal"),
        node("Cast", "is_sixteen", "factor", "cast", to=FLOAT),
        node("Mul", "x factor", "h", "scaled"),
        node("Exp", "h", "y", "y"),
    ]
    inputs = [info("x", ["n", 4]), info("rate", [], INT64)]
    weights = [numpy_helper.from_array(np.array(16), "sixteen")]
    path = saved(model(nodes, inputs, [info("y", ["n", 4])], weights), tmp_path)
    plan = plan_of(path, [0, 1], dims={"n": 3}, values={"rate": 16})
    assert go_opt.run_plan(path, plan, inferences=3).difference < 1e-6
    manifest = export(path, plan, tmp_path / "out")
    assert manifest.inputs == ("x",)
    assert (manifest.dims, manifest.values, manifest.trips) == ({"n": 3}, {"rate": (16.0,)}, {})
    assert load_manifest(tmp_path / "out") == manifest

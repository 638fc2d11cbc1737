"""What a command writes replaces only files that go-opt wrote, and never one that it reads."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import typer
from onnx import TensorProto, external_data_helper

from go_opt.bench.processes import RecordFile
from go_opt.calibration.samples import write_samples
from go_opt.cli.app import app
from go_opt.cli.inputs.machine import machine_text
from go_opt.common import outputs
from go_opt.common.files import write_atomically
from go_opt.common.outputs import FileKind
from go_opt.errors import InvalidInputError
from go_opt.report.page.page import page_text
from go_opt.run.export.folder import exported_files, whole_folder
from go_opt.run.pipeline.check import save_arrays
from go_opt.run.profiling.profiling import Profile
from tests.cli.conftest import Cli, graph_file, mlp_file
from tests.exports import info, model, node, saved, weight

FOREIGN: Final = b'{"format": "a file of mine"}\n'
# Every option that writes, with a command line that gives it as OUT and has the files m, p and t.
COMMANDS: Final = {
    "optimize --out": "optimize m.json --max-evaluations 1 --out OUT",
    "evaluate --out": (
        "evaluate gpt:hidden=64,layers=2,heads=2,sequence=16 --objective step --target dgx-a100-2 --batch 2 "
        "--parallel data=2 --out OUT"
    ),
    "design --out": "design t.toml m.json --memory 1MB -o OUT",
    "design --plan": "design t.toml m.json --memory 1MB -o d.toml --plan OUT",
    "jobs wait --out": "jobs wait operations/x --out OUT",
    "trace --out": "trace m.json p.json -o OUT",
    "report --out": "report m.json p.json -o OUT",
    "report --model-explorer": "report m.json p.json -o page.html --model-explorer OUT",
    "run --outputs": "run m.onnx --plan p.json --outputs OUT",
    "profile --out": "profile m.onnx -o OUT",
    "profile --costs": "profile m.onnx -o machine.toml --costs OUT",
    "calibrate --out": "calibrate m.json --simulator t.toml -o OUT",
    "calibrate --plan": "calibrate m.json --simulator t.toml -o c.toml --plan OUT",
    "calibrate --export": "calibrate m.json --simulator t.toml -o c.toml --export OUT",
    "targets new --out": "targets new --set chips=2 -o OUT",
    "bench --out": "bench m.json --methods greedy --seeds 1 --max-evaluations 1 --out OUT",
}
FOLDERS: Final = {"export --out", "pretrain --out", "finetune --out"}
WITHOUT_OVERWRITE: Final = {"bench --out"}  # appends to its own files


@pytest.fixture(autouse=True)
def files(tmp_path: Path, cli: Cli) -> None:
    graph_file(tmp_path / "m.json")
    mlp_file(tmp_path / "m.onnx")
    (tmp_path / "p.json").write_text("{}")
    (tmp_path / "t.toml").write_text("")


def options() -> Iterator[tuple[str, str]]:
    """Command and option of every path that a command takes, and the help of the option."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, str]]:
        command = getattr(command, "loaded", command)
        for below, inner in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {below}".strip(), inner)
        for parameter in command.params:
            yield f"{name} {parameter.opts[0]}", parameter.help or ""

    return walk("", typer.main.get_command(app))


def test_the_table_has_every_option_that_writes() -> None:
    writes = ("Write ", "Also write ", "Append ", "Folder of the run")
    assert {name for name, text in options() if text.startswith(writes)} == COMMANDS.keys() | FOLDERS


def refused(cli: Cli, name: str, out: str | Path, *more: str) -> str:
    run = cli(*(str(out) if word == "OUT" else word for word in COMMANDS[name].split()), *more)
    assert (run.code, len(run.err), run.out) == (2, 1, "")
    return run.err[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_another_program_stays(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").write_bytes(FOREIGN)
    (tmp_path / "link").symlink_to("mine")
    for out in ("mine", "link", "./mine", tmp_path / "mine"):
        sentence = refused(cli, name, out)
        assert "exists" in sentence
        assert name in WITHOUT_OVERWRITE or sentence.endswith(": --overwrite replaces it.")
    assert (tmp_path / "mine").read_bytes() == FOREIGN
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", COMMANDS)
def test_no_input_is_replaced_by_any_path_to_it(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    for read in {word for word in COMMANDS[name].split() if (tmp_path / word).is_file()}:
        os.link(tmp_path / read, tmp_path / "hard")
        for out in (read, f"./{read}", tmp_path / read, f"link/{read}", "hard"):
            more = [] if name in WITHOUT_OVERWRITE else ["--overwrite"]
            assert "input" in refused(cli, name, out, *more)
        (tmp_path / "hard").unlink()
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}


def test_two_outputs_are_two_files(cli: Cli) -> None:
    cli("profile", "m.onnx", "-o", "x", "--costs", "./x").is_refused("another output")
    cli("report", "m.json", "p.json", "-o", "x", "--model-explorer", "x").is_refused("another output")
    cli("calibrate", "m.json", "--simulator", "t.toml", "-o", "x", "--plan", "x.samples.json").is_refused(
        "another output"
    )


def test_the_weights_of_a_model_are_an_input(cli: Cli, tmp_path: Path) -> None:
    values = weight("w", 64, 64)
    kept = model([node("MatMul", "x w", "y", "op")], [info("x", [4, 64])], [info("y", [4, 64])], [values])
    external_data_helper.set_external_data(kept.graph.initializer[0], "m.weights")
    kept.graph.initializer[0].data_location = TensorProto.EXTERNAL
    saved(kept, tmp_path)
    kept.graph.initializer[0].ClearField("raw_data")
    (tmp_path / "big.onnx").write_bytes(kept.SerializeToString())
    (tmp_path / "m.weights").write_bytes(b"w" * 16384)
    run = cli("optimize", "big.onnx", "--out", "m.weights", "--overwrite", "--max-evaluations", "1")
    run.is_refused("'m.weights' is also an input")


def test_a_plan_is_written_again_and_through_links(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(FOREIGN)
    command = ("optimize", "m.json", "--max-evaluations", "1", "--target", "mcm-2x2", "--json", "--out")
    assert cli(*command, "mine", "--overwrite").code == 0
    (tmp_path / "link.json").symlink_to("mine")
    assert cli(*command, "link.json").code == 0  # now it is a plan
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "mine").read_text())["format"] == "go_opt.v1.Plan"
    assert cli(*command, "mine", "--start", "mine", "--overwrite").code == 2


def arrays(path: Path) -> None:
    save_arrays(path, {"y": np.zeros(3)})


WRITERS: Final[dict[str, tuple[FileKind, Callable[[Path], object]]]] = {
    "page": (outputs.PAGE, lambda path: write_atomically(path, page_text({}))),
    "target": (outputs.TARGET, lambda path: write_atomically(path, machine_text({}, "t"))),
    "arrays": (outputs.DATASET, arrays),
    "samples": (outputs.SAMPLES, lambda path: write_samples(path, "here", [])),
    "costs": (
        outputs.COSTS,
        lambda path: path.write_text(
            Profile(None, "", {"a": 1.0}, {}, 0, 0, 0.0, 0.0).costs_text  # type: ignore[arg-type]
        ),
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_has_its_mark_and_no_other(tmp_path: Path, name: str) -> None:
    kind, write = WRITERS[name]
    write(tmp_path / "file")
    every = [one for one in vars(outputs).values() if isinstance(one, FileKind)]
    assert [one for one in every if one.is_of(tmp_path / "file")] == [kind]
    (tmp_path / "file").write_bytes(FOREIGN)
    assert not kind.is_of(tmp_path / "file")


def test_a_marked_data_set_is_read_as_any(tmp_path: Path) -> None:
    arrays(tmp_path / "a.npz")
    assert np.load(tmp_path / "a.npz")["y"].shape == (3,)
    assert zipfile.ZipFile(tmp_path / "a.npz").testzip() is None


@pytest.mark.parametrize("name", outputs.RUN)
def test_a_training_run_does_not_touch_files_of_others(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / f"run{name}").write_bytes(FOREIGN)
    cli("finetune", "m.json", "--out", "run").is_refused(f"'run{name}' exists", "give another file")
    cli("pretrain", "--graph", "m.json", "--out", "run").is_refused(f"'run{name}' exists")
    assert (tmp_path / f"run{name}").read_bytes() == FOREIGN


def test_a_foreign_line_of_json_stays_where_records_are_appended(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(FOREIGN.strip())  # no newline, as of a record cut short
    with pytest.raises(InvalidInputError, match="no file of records"):
        RecordFile(tmp_path / "graph.json")
    assert (tmp_path / "graph.json").read_bytes() == FOREIGN.strip()


class TestExport:
    """``--force`` deletes what the manifest lists, in the folder itself."""

    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        out = tmp_path / "out"
        for text in ("old", "older"):
            with whole_folder(out) as folder:
                (folder / "deep").mkdir()
                (folder / "deep" / f"{text}.onnx").write_text(text)
                self.manifest(
                    folder, f"deep/{text}.onnx", "../m.onnx", "deep", "/etc/hostname", "link/m.json"
                )
        return out

    @staticmethod
    def manifest(folder: Path, *written: str) -> None:
        data = {"format": "go_opt.v1.Export", "written": [*written, "manifest.json"]}
        (folder / "manifest.json").write_text(json.dumps(data))

    def test_other_files_stay(self, tmp_path: Path, out: Path) -> None:
        (out / "notes.txt").write_text("mine")
        (out / "link").symlink_to(tmp_path)
        (tmp_path / "way").symlink_to(out)
        assert exported_files(out) == ["deep/older.onnx", "manifest.json"]
        with whole_folder(tmp_path / "way") as folder:
            (folder / "new.onnx").write_text("new")
            self.manifest(folder, "new.onnx")
        left = {file.name for file in out.iterdir()}
        assert left == {"new.onnx", "manifest.json", "notes.txt", "link"}
        assert (tmp_path / "way").is_symlink()
        assert {"m.onnx", "m.json"} <= {file.name for file in tmp_path.iterdir()}
        assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".out")] == []

    def test_a_file_in_the_way_stays(self, out: Path) -> None:
        def again() -> None:
            with whole_folder(out) as folder:
                (folder / "new.onnx").write_text("new")
                self.manifest(folder, "new.onnx")

        (out / "new.onnx").write_text("mine")
        with pytest.raises(InvalidInputError, match="in the way"):
            again()
        assert (out / "new.onnx").read_text() == "mine"
        assert exported_files(out) == ["deep/older.onnx", "manifest.json"]

    @pytest.mark.parametrize("text", ["{}", "[]", "null", '{"format": "other"}', "no JSON"])
    def test_another_manifest_is_no_export(self, cli: Cli, out: Path, text: str) -> None:
        (out / "manifest.json").write_text(text)
        cli("export", "m.onnx", "p.json", "-o", "out", "--force").is_refused("no earlier export")
        assert (out / "deep/older.onnx").exists()

    def test_the_model_is_not_deleted(self, cli: Cli, tmp_path: Path, out: Path) -> None:
        (tmp_path / "m.onnx").rename(out / "m.onnx")
        self.manifest(out, "m.onnx")
        cli("export", "out/m.onnx", "p.json", "-o", "out", "--force").is_refused("reads its file 'm.onnx'")
        assert (out / "m.onnx").exists()

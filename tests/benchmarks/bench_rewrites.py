"""What rewrites are worth: plans with and without them, and models that ONNX Runtime runs.

Run: PYTHONPATH=. python tests/benchmarks/bench_rewrites.py plans [--split test] [--most-ops N]
         [NAME ...] [--evaluations N | --budget SECONDS] [--seeds N] [--on TARGET:OBJECTIVE ...]
         [--without RULE ...]
     PYTHONPATH=. python tests/benchmarks/bench_rewrites.py ort [--repeats N] [--python FILE] [--unrolled]
         [FILE ...]
     PYTHONPATH=. python tests/benchmarks/bench_rewrites.py rivals [--evaluations N] [--seeds N]
         [--on TARGET:OBJECTIVE ...] [--python FILE] [FILE ...]
     PYTHONPATH=. python tests/benchmarks/bench_rewrites.py machine [--evaluations N] [--seconds S] [FILE ...]

``plans``: graphs of a split of the zoo, at equal evaluations, or for equal seconds: of the processor, by
which a search's clock then runs, so that other work does not count. *sent* is the search without rewrites,
*rewritten* with them, *gain* the objective of the first over that of the second; with ``--without``, the
gain of the search that lacks a rule. With ``--seeds`` a gain is the geometric mean over seeds from 0, and the
other columns are those of the last. Asserts that every plan is verified. Graphs in which nothing can be
rewritten count as 1 in the means.

``ort``: models, by default those that the package onnx ships, with random weights in place of theirs and
without the softmax at the end. Each is rewritten wholly, by ``fold`` and by all rules, and by the simplifiers
of others if ``--python`` is an interpreter that has them. Processor time of one thread by ONNX Runtime with
all of its levels, the least of some interleaved runs; and the largest difference of an output, relative to
the largest output. *noise* is that of ONNX Runtime's own levels. Asserts that rewritten models differ by no
more than 1e-5, or ten times the noise. ``--unrolled``: LSTMs of as many steps, widths of inputs and of states
as their names say, one row a step, as exporters write them that unroll loops.

``rivals``: the same models by name, or files, planned as sent, without rewrites and with them; and as others
make them (onnxsim, onnxslim, onnxscript's optimizer and rewriter, ONNX Runtime's levels), without rewrites.
All at equal evaluations. A cell is the objective of the model as sent, without rewrites, over that of the
column, in the geometric mean over seeds. All models run in ONNX Runtime without its levels, ours with the
rewrites of each plan; asserts that ours are equal as above. A model of others is *invalid* if they make none,
if ONNX Runtime or go-opt refuses it, or if its outputs differ by more.

``machine``: the same models, by default the unrolled LSTMs, on two processes of ONNX Runtime on this machine,
whose rates `go-opt profile` fits in some seconds. Interval and latency without rewrites over those with them,
as predicted and as run: processor time of the busiest process, and of all stages one after the other, the
least of three runs in turn. Asserts that outputs are equal within the tolerance of `go-opt run`.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

import go_opt
from go_opt.env import zoo_entries
from go_opt.env.rewrites.applying import RULES, possible_rewrites
from go_opt.errors import InfeasibleError
from go_opt.frontends.onnx_frontend import import_onnx
from go_opt.model.bindings import Bindings
from go_opt.model.graph import Graph, Rewrite
from go_opt.result import OptimizeResult
from go_opt.run.cut.rewrites import rewrite_nodes
from go_opt.run.cut.source import model_of_plan
from go_opt.run.pipeline.results import RunResult
from tests.benchmarks.measuring import header, row

ON: Final = ("mcm-6x6:throughput", "h100-sxm-1:latency", "gpu-2:latency")
LIGHT: Final = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
EQUAL: Final = 1e-5


def asked(
    graph: Graph, target: str, options: dict[str, Any], *, without: str | None = None
) -> OptimizeResult:
    rules = tuple(rule for rule in RULES if rule != without)

    def possible(one: Graph, of: tuple[str, ...] = RULES, *rest: Any) -> Any:
        return possible_rewrites(one, tuple(rule for rule in of if rule in rules), *rest)

    with patch("go_opt.search.rewriting.choices.possible_rewrites", possible):
        found = go_opt.optimize(graph, target, policy=None, simulate=False, **options)
    assert go_opt.verify(graph, target, found.plan) == []
    return found


def bench_plans(arguments: argparse.Namespace) -> None:
    if arguments.budget:
        time.monotonic = time.process_time  # the clock of searches
    names = arguments.names or [
        one.name for one in zoo_entries() if one.split == arguments.split and one.ops <= arguments.most_ops
    ]
    columns = [
        "graph",
        "on",
        "sent, us",
        "rewritten, us",
        "gain",
        *(f"without {one}" for one in arguments.without),
    ]
    header([*columns, *RULES, "sent, s", "rewritten, s"], texts=2)
    gains: dict[str, list[list[float]]] = {on: [] for on in arguments.on}
    least = dict.fromkeys(arguments.on, math.inf)  # of a plan
    for name in names:
        graph = go_opt.load(f"zoo:{name}")
        for on in arguments.on:
            target, _, objective = on.partition(":")
            gain: list[list[float]] = []
            for seed in range(arguments.seeds):
                limit = {"max_evaluations": arguments.evaluations}
                if arguments.budget:
                    limit = {"budget_s": arguments.budget}
                options = {"objective": objective, "seed": seed, "rewrite": False, **limit}
                began_s = time.process_time()
                try:
                    sent = asked(graph, target, options)
                except InfeasibleError:
                    break
                between_s = time.process_time()
                made = asked(graph, target, options | {"rewrite": True})
                ended_s = time.process_time()
                used = [sum(one.rule == rule for one in made.plan.rewrites) for rule in RULES]
                without = (
                    asked(graph, target, options | {"rewrite": True}, without=rule)
                    if used[RULES.index(rule)]
                    else made
                    for rule in arguments.without
                )
                gain.append([sent.objective_s / one.objective_s for one in (made, *without)])
            if not gain:
                continue
            means = np.exp(np.log(gain).mean(axis=0)).tolist()
            gains[on].append(means)
            least[on] = min(least[on], *(each[0] for each in gain))
            figures = [f"{1e6 * one.objective_s:.2f}" for one in (sent, made)]
            times = [f"{one:.1f}" for one in (between_s - began_s, ended_s - between_s)]
            row([name, on, *figures, *(f"{one:.3f}" for one in means), *map(str, used), *times])
    for on, rows in gains.items():
        means = [math.exp(float(np.mean(np.log([each[i] for each in rows])))) for i in range(len(rows[0]))]
        shown = ", ".join(f"{one:.4f}" for one in means)
        print(f"{on}: {len(rows)} graphs, mean gain {shown}, least of a plan {least[on]:.4f}")


def rewritten_model(path: Path, rules: tuple[str, ...]) -> tuple[ir.Model, int]:
    """A model with all that rules can rewrite, and how many rewrites these are."""
    graph, lowered = import_onnx(path, Bindings(), "native")
    rewrites = possible_rewrites(graph, rules)
    model = model_of_plan(lowered)
    rewrite_nodes(model.graph, graph, rewrites)
    return model, len(rewrites)


RIVALS: Final = {
    "onnxsim": "import onnxsim; made, same = onnxsim.simplify(onnx.load(a)); assert same; onnx.save(made, b)",
    "onnxslim": "import onnxslim; onnx.save(onnxslim.slim(onnx.load(a)), b)",
    "onnxscript": "import onnxscript.optimizer as o, onnxscript.rewriter as r;"
    " onnx.save(r.rewrite(o.optimize(onnx.load(a))), b)",
    "ORT basic": "level(1)",
    "ORT extended": "level(2)",
}
_PRELUDE: Final = """
import sys, onnx
a, b = sys.argv[1:]
def level(number):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(number)
    options.optimized_model_filepath, options.log_severity_level = b, 3
    ort.InferenceSession(a, options, providers=["CPUExecutionProvider"])
"""
MOST_S: Final = 600.0  # for a rival and a model


def simplified(path: Path, folder: Path, python: str) -> Iterator[tuple[str, Path | str]]:
    """The model by each rival, or why there is none."""
    for name, code in RIVALS.items():
        made = folder / f"{name.replace(' ', '_')}.onnx"
        command = [python, "-c", _PRELUDE + code, str(path), str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
        except subprocess.TimeoutExpired:
            yield name, f"took more than {MOST_S:.0f} s"
            continue
        yield name, made if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]


def session(path: Path, *, is_optimized: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not is_optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(path, options)


def bench_ort(arguments: argparse.Namespace) -> None:
    names = [Path(one) for one in arguments.names] or sorted(LIGHT.glob("*.onnx"))
    header(["model", "by", "nodes", "time, ms", "gain", "difference", "noise"], texts=2)
    if arguments.unrolled:
        with tempfile.TemporaryDirectory() as folder:
            for sizes in UNROLLED:
                of = (*sizes, Path(folder))
                more = {products: unrolled_lstm(*of, products) for products in ("by hand", "given")}
                _bench_model(unrolled_lstm(*of), Path(folder), arguments, more)
        return
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = name if arguments.names else with_random_weights(name, Path(folder))
            _bench_model(path, Path(folder), arguments)


def with_random_weights(path: Path, folder: Path) -> Path:
    """A model whose weights are all generated, as one with random weights of about the usual size."""
    model, rng = onnx.load(path), np.random.default_rng(0)
    graph = model.graph
    positive = {one.input[4] for one in graph.node if one.op_type == "BatchNormalization"}
    shapes = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    made = [one for one in graph.node if one.op_type == "ConstantOfShape" and one.input[0] in shapes]
    for node in made:
        shape, name = shapes[node.input[0]].tolist(), node.output[0]
        values = rng.normal(size=shape) * math.sqrt(2.0 / max(math.prod(shape[1:]), 1))
        values = rng.uniform(0.5, 1.5, shape) if name in positive else values
        graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    for unused in [one for one in graph.initializer if one.name not in read]:
        graph.initializer.remove(unused)
    inputs = [one for one in graph.input if one.name not in shapes or one.name in read]
    del graph.input[:]
    graph.input.extend(one for one in inputs if one.name not in {each.name for each in graph.initializer})
    if graph.node[-1].op_type == "Softmax":  # which would hide what differs
        graph.output[0].name = graph.node[-1].input[0]
        graph.node.pop()
    model.ir_version = max(model.ir_version, 4)  # initializers need not be inputs
    onnx.save(model, to := folder / path.name)
    return to


UNROLLED: Final = ((16, 80, 512), (32, 256, 128), (32, 256, 256), (32, 1024, 256), (64, 512, 256))


def unrolled_lstm(steps: int, width: int, hidden: int, folder: Path, products: str = "a step") -> Path:
    """An LSTM whose steps are nodes, each with products of what it reads and of its state.

    Args:
      products: of inputs: one ``a step``, one for all steps ``by hand``, or their results are ``given``.
    """
    rng, helper = np.random.default_rng(0), onnx.helper
    sizes = {"w": (4 * hidden, width), "u": (4 * hidden, hidden), "b": (4 * hidden,), "h": (1, hidden),
             "c": (1, hidden)}  # fmt: skip
    weights = [
        onnx.numpy_helper.from_array((rng.normal(size=of) / math.sqrt(of[-1])).astype(np.float32), name)
        for name, of in sizes.items()
    ]
    weights.append(onnx.numpy_helper.from_array(np.full(4, hidden), "gates"))
    weights.append(onnx.numpy_helper.from_array(np.array([steps, width]), "rows"))
    weights.append(onnx.numpy_helper.from_array(np.ones(steps, np.int64), "ones"))
    x_all = "" if products == "a step" else " ".join(f"xw{t}" for t in range(steps))
    by_hand = [("Reshape", "x rows", "xs"), ("Gemm", "xs w b", "xw"), ("Split", "xw ones", x_all)]
    before = {"a step": [], "by hand": by_hand, "given": [("Split", "x ones", x_all)]}[products]
    nodes, (h, c) = [], ("h", "c")
    for t in range(steps):
        weights.append(onnx.numpy_helper.from_array(np.array(t), f"at{t}"))
        if products == "a step":
            before = [("Gather", f"x at{t}", f"x{t}"), ("Gemm", f"x{t} w b", f"xw{t}")]
        rows = [
            *(before if t == 0 or products == "a step" else []), ("Gemm", f"{h} u", f"hu{t}"),
            ("Add", f"xw{t} hu{t}", f"z{t}"), ("Split", f"z{t} gates", f"i{t} f{t} g{t} o{t}"),
            *(("Sigmoid", f"{one}{t}", f"{one}s{t}") for one in "ifo"), ("Tanh", f"g{t}", f"gs{t}"),
            ("Mul", f"fs{t} {c}", f"fc{t}"), ("Mul", f"is{t} gs{t}", f"ig{t}"),
            ("Add", f"fc{t} ig{t}", f"c{t}"), ("Tanh", f"c{t}", f"ct{t}"), ("Mul", f"os{t} ct{t}", f"h{t}"),
        ]  # fmt: skip
        named = {"Gemm": {"transB": 1}, "Split": {"axis": 1}}
        nodes += [
            helper.make_node(
                kind,
                read.split(),
                written.split(),
                written.split()[0],
                **({"axis": 0} if written == x_all else named.get(kind, {})),
            )
            for kind, read, written in rows
        ]
        h, c = f"h{t}", f"c{t}"
    read = {name for one in nodes for name in one.input}
    weights = [one for one in weights if one.name in read]
    shape = [steps, 4 * hidden] if products == "given" else [steps, 1, width]
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info(h, onnx.TensorProto.FLOAT, [1, hidden])
    graph = helper.make_graph(nodes, "lstm", [given], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path := folder / f"lstm_{steps}_{width}_{hidden}_{products.replace(' ', '_')}.onnx")
    return path


def _bench_model(
    path: Path, folder: Path, arguments: argparse.Namespace, more: Mapping[str, Path] = MappingProxyType({})
) -> None:
    models = {"as sent": path, **more}
    for rules in (("fold",), ("fold", "batch"), RULES):
        made, number = rewritten_model(path, rules)
        name = f"{number} of {' and '.join(rules)}"
        if number:
            ir.save(made, to := folder / f"{name}.onnx")
            models[name] = to
    rewritten = {*models} - {"given"}
    if arguments.python:
        others = dict(simplified(path, folder, arguments.python))
        models |= {name: one for name, one in others.items() if isinstance(one, Path)}
    sessions = {name: session(one) for name, one in models.items()}
    read = {name: random_arrays(one) for name, one in sessions.items()}
    runs: dict[str, Callable[[], Sequence[Any]]] = {
        name: lambda one=one, name=name: one.run(None, read[name]) for name, one in sessions.items()
    }
    results = {name: run() for name, run in runs.items()}
    plain = session(path, is_optimized=False).run(None, read["as sent"])
    noise = _difference(results["as sent"], plain)
    least = dict.fromkeys(runs, math.inf)
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            began_s = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - began_s)
    for name, one in models.items():
        apart = _difference(results[name], plain)
        if name in rewritten:
            assert apart <= max(EQUAL, 10 * noise), (path.name, apart, noise)
        nodes = len(onnx.load(one, load_external_data=False).graph.node)
        gain = least["as sent"] / least[name]
        times = [f"{1e3 * least[name]:.2f}", f"{gain:.3f}"]
        difference = "" if name == "given" else f"{apart:.1e}"
        row([path.stem, name, str(nodes), *times, difference, f"{noise:.1e}"])


def bench_machine(arguments: argparse.Namespace) -> None:
    columns = ["model", "objective", "rewrites", "predicted, us", "gain", "run, us", "gain run"]
    header(columns, texts=2)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(name) for name in arguments.names]
        for path in paths or [unrolled_lstm(*sizes, Path(folder)) for sizes in UNROLLED]:
            target = Path(folder) / "machine.toml"
            go_opt.profile(path, target, chips=2, seconds=arguments.seconds)
            for objective in ("throughput", "latency"):
                _bench_machine(path, str(target), objective, arguments.evaluations)


def _bench_machine(path: Path, target: str, objective: str, evaluations: int) -> None:
    graph, options = go_opt.from_onnx(path), {"objective": objective, "max_evaluations": evaluations}
    found = [asked(graph, target, options | {"rewrite": rewrite}) for rewrite in (False, True)]
    least = [math.inf, math.inf]
    for i in (0, 1) * 3:
        ran = go_opt.run_plan(path, found[i].plan, inferences=40, target=target)
        seconds = ran.processor_interval_s if objective == "throughput" else path_seconds_of(ran)
        least[i] = min(least[i], seconds)
    said = [one.objective_s for one in found]
    figures = [f"{1e6 * said[1]:.1f}", f"{said[0] / said[1]:.3f}"]
    figures += [f"{1e6 * least[1]:.1f}", f"{least[0] / least[1]:.3f}"]
    row([path.stem, objective, str(len(found[1].plan.rewrites)), *figures])


def path_seconds_of(ran: RunResult) -> float:
    """Processor seconds of all stages, one after the other."""
    return sum(one.processor_s for one in ran.stages)


def random_arrays(one: ort.InferenceSession) -> dict[str, Any]:
    """Normal floating-point numbers, and whole numbers from 0 to 9; free dimensions are 1."""
    rng, made = np.random.default_rng(0), {}
    for given in one.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in given.shape]
        is_float = given.type == "tensor(float)"
        values = rng.normal(size=shape) if is_float else rng.integers(0, 10, shape)
        made[given.name] = values.astype(np.float32 if is_float else np.int64)
    return made


def bench_rivals(arguments: argparse.Namespace) -> None:
    header(["model", "on", "as sent, us", "rewritten", *RIVALS], texts=2)
    gains: dict[str, list[list[float]]] = {on: [] for on in arguments.on}
    for name in arguments.names or sorted(one.stem for one in LIGHT.glob("*.onnx")):
        with tempfile.TemporaryDirectory() as folder:
            light = LIGHT / f"{name}.onnx"
            path = with_random_weights(light, Path(folder)) if light.exists() else Path(name)
            made = dict(simplified(path, Path(folder), arguments.python or sys.executable))
            _bench_rivals(path, made, arguments, gains)
    for on, rows in gains.items():
        if rows:
            means, least = np.exp(np.log(rows).mean(axis=0)), np.min(rows, axis=0)
            columns = zip(["rewritten", *RIVALS], means, least, strict=True)
            shown = ", ".join(f"{name} {mean:.4f} (least {low:.3f})" for name, mean, low in columns)
            print(f"{on}: {len(rows)} models, an invalid one counts as 1: {shown}")


def _bench_rivals(
    path: Path,
    made: dict[str, Path | str],
    arguments: argparse.Namespace,
    gains: dict[str, list[list[float]]],
) -> None:
    sent = session(path, is_optimized=False)
    inputs = random_arrays(sent)
    plain, noise = sent.run(None, inputs), session(path).run(None, inputs)
    most = max(EQUAL, 10 * _difference(noise, plain))
    graph, problems = go_opt.from_onnx(path), dict[str, str]()
    graphs: dict[str, Graph] = {}
    for name, one in made.items():
        try:
            if isinstance(one, str):
                problems[name] = one
                continue
            apart = _difference(session(one, is_optimized=False).run(None, inputs), plain)
            if not apart <= most:
                problems[name] = f"differs by {apart:.1e}"
            else:
                graphs[name] = go_opt.from_onnx(one)
        except Exception as error:  # of any kind: it is a rival's model
            problems[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    for on in arguments.on:
        target, _, objective = on.partition(":")
        seconds: dict[str, list[float]] = {}
        for seed in range(arguments.seeds):
            options = {"objective": objective, "max_evaluations": arguments.evaluations, "seed": seed}
            for name, one in {"sent": graph, "rewritten": graph, **graphs}.items():
                found = asked(one, target, options | {"rewrite": name == "rewritten"})
                seconds.setdefault(name, []).append(found.objective_s)
                if name == "rewritten" and found.plan.rewrites:
                    _check_run(path, found.plan.rewrites, inputs, plain, most)
        means = {name: float(np.exp(np.log(each).mean())) for name, each in seconds.items()}
        row_gains = [means["sent"] / means.get(name, means["sent"]) for name in ("rewritten", *RIVALS)]
        gains[on].append(row_gains)
        named = zip(("rewritten", *RIVALS), row_gains, strict=True)
        shown = ["invalid" if name in problems else f"{gain:.3f}" for name, gain in named]
        row([path.stem, on, f"{1e6 * means['sent']:.2f}", *shown])
    for name, problem in problems.items():
        print(f"{path.stem}: {name}: {problem}")


def _check_run(
    path: Path, rewrites: tuple[Rewrite, ...], inputs: dict[str, Any], plain: Sequence[Any], most: float
) -> None:
    """Assert that the model with the rewrites of a plan computes the same."""
    graph, lowered = import_onnx(path, Bindings(), "native")
    model = model_of_plan(lowered)
    rewrite_nodes(model.graph, graph, rewrites)
    with tempfile.TemporaryDirectory() as folder:
        ir.save(model, to := Path(folder) / "rewritten.onnx")
        apart = _difference(session(to, is_optimized=False).run(None, inputs), plain)
    assert apart <= most, (path.name, apart, most)


def _difference(ones: Sequence[Any], others: Sequence[Any]) -> float:
    pairs = zip(ones, others, strict=True)
    return max(float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("plans", "ort", "rivals", "machine"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--split", default="test")
    parser.add_argument("--most-ops", type=int, default=1300)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--budget", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--on", nargs="*", default=ON)
    parser.add_argument("--without", nargs="*", default=(), choices=RULES)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--python", default="")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--unrolled", action="store_true")
    arguments = parser.parse_args()
    {"plans": bench_plans, "ort": bench_ort, "rivals": bench_rivals, "machine": bench_machine}[
        arguments.what
    ](arguments)


if __name__ == "__main__":
    main()

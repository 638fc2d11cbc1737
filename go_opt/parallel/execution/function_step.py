"""A planned training step that is a JAX function: its shardings, and a run on host devices."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from go_opt.api.inputs import whole_case
from go_opt.common.version import VERSION
from go_opt.env import Target
from go_opt.env.copies.divisions import period_in
from go_opt.env.copies.parts import Held, SplitGraph
from go_opt.env.copies.splits import planned_graph, split_levels
from go_opt.errors import InvalidInputError, ModelError, PlanError
from go_opt.extras import check_installed
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.parallel.execution.processes import FunctionJob, run_processes
from go_opt.parallel.execution.running import MOST_DEVICES, STEPS, TOLERANCE, FunctionRun, StepDiffersError
from go_opt.parallel.export.exporting import JAX_FILE, spec_text
from go_opt.run.export.folder import check_can_run, check_free, whole_folder
from go_opt.search.replicas.ways import batch_factors
from go_opt.solver.verify.verifier import verify

DATA, TENSOR = "data", "tensor"  # axes of the mesh
_Spec = tuple[tuple[str, ...], ...]  # the axes that divide each dimension, the major one first


@dataclass(frozen=True, eq=False)
class JaxStep:
    """A step with the shardings of a plan, over an axis of replicas, of chips that share layers, or both."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    graph: Graph
    plan: Plan
    axes: Mapping[str, int]  # devices of each axis, the last one of neighbours
    arguments: tuple[_Spec, ...]  # of the arrays of all arguments, as JAX flattens them
    results: tuple[_Spec, ...]
    states: Mapping[int, int]  # array of the arguments -> the array of the results that is its next value

    @property
    def devices(self) -> int:
        """How many there are."""
        return math.prod(self.axes.values())

    def shardings(self) -> tuple[Any, Any]:
        """``in_shardings`` and ``out_shardings`` of ``jax.jit(fn)``, trees of ``NamedSharding``.

        Raises:
          InvalidInputError: JAX has fewer devices than the plan.
        """
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        found = jax.devices()[: self.devices]
        if len(found) < self.devices:
            raise InvalidInputError(f"the plan is for {self.devices} devices, and JAX has {len(found)}.")
        mesh = Mesh(np.array(found).reshape(tuple(self.axes.values())), tuple(self.axes))
        trees = jax.tree.structure(self.args), jax.tree.structure(jax.eval_shape(self.fn, *self.args))
        return tuple(
            jax.tree.unflatten(
                tree, [NamedSharding(mesh, PartitionSpec(*map(_entry, spec))) for spec in specs]
            )
            for tree, specs in zip(trees, (self.arguments, self.results), strict=True)
        )

    def export(self, directory: str | Path) -> Path:
        """Write the shardings as a module of JAX, ``jax_shardings.py`` (docs/export.md).

        Args:
          directory: a folder that does not exist or is empty.

        Returns:
          The path of the module.

        Raises:
          InvalidInputError: the folder cannot be written, or has files.
        """
        check_free(directory, force=False)
        with whole_folder(directory) as folder:
            (folder / JAX_FILE).write_text(self._text(), "utf-8")
        return Path(directory) / JAX_FILE

    def _text(self) -> str:
        names = _argument_names(self.args), _result_names(self.fn, self.args)
        of_arguments, of_results = (
            "".join(f"    {name!r}: {spec_text(spec)},\n" for name, spec in zip(*of, strict=True))
            for of in zip(names, (self.arguments, self.results), strict=True)
        )
        listed = ", ".join(f'"{name}": {size}' for name, size in self.axes.items())
        return _TEXT.format(
            model=repr(self.graph.name),
            target=self.plan.target,
            version=VERSION,
            axes=f"{{{listed}}}",
            arguments=of_arguments,
            results=of_results,
        )

    def run(self, *, tolerance: float = TOLERANCE) -> FunctionRun:
        """Take three steps from the arguments on host devices of a process, and the same on one device.

        Floating-point arguments are in float64; each step has the same batch.

        Args:
          tolerance: largest difference, relative to the largest element of each array.

        Raises:
          InvalidInputError: an argument has no values, or there are too many devices.
          ModelError: a state is not float64 when its step has float64.
          EnvironmentFailedError: the process ended early.
          StepDiffersError: a result differs, or a device keeps or computes more than planned.
        """
        if self.devices > MOST_DEVICES:
            raise InvalidInputError(f"a run has at most {MOST_DEVICES} devices, not {self.devices}.")
        with tempfile.TemporaryDirectory(prefix="go-opt-run-") as folder:
            told = self._told(Path(folder))
        flop_share, state_elements = _planned(self.graph, self.plan, self.axes)
        worst = int(np.argmax(told["gaps"]))
        result = FunctionRun(
            self.graph.name,
            self.plan.target,
            self.devices,
            tuple(map(tuple, told["others"])),
            tuple(map(tuple, told["others_whole"])),
            told["gaps"][worst],
            _result_names(self.fn, self.args)[worst],
            tolerance,
            told["flop_share"],
            flop_share,
            told["state_elements"],
            state_elements,
        )
        if result.problem:
            raise StepDiffersError(f"{result.problem}.", result)
        return result

    def _told(self, folder: Path) -> dict[str, Any]:
        import jax
        from jax import export

        leaves, tree = jax.tree.flatten(self.args)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            raise InvalidInputError("a run needs arrays as arguments, not shapes alone.")
        arrays = [np.asarray(leaf) for leaf in leaves]
        arrays = [
            one.astype(np.float64) if jax.numpy.issubdtype(one.dtype, np.floating) else one for one in arrays
        ]

        def flat(*leaves: Any) -> list[Any]:
            return jax.tree.leaves(self.fn(*jax.tree.unflatten(tree, leaves)))

        home: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # before JAX 0.8
        with home.enable_x64(True):
            exported = export.export(jax.jit(flat), platforms=["cpu"])(*arrays)
        for read, following in self.states.items():
            dtype = exported.out_avals[following].dtype
            if dtype != arrays[read].dtype:
                raise ModelError(
                    f"state {self.graph.tensor_names[read]!r} of {arrays[read].dtype} becomes {dtype} in a "
                    "step, so the step cannot run in float64."
                )
        (folder / "step.bin").write_bytes(exported.serialize())
        np.savez(folder / "arrays.npz", **{str(i): one for i, one in enumerate(arrays)})  # type: ignore[arg-type]
        (folder / JAX_FILE).write_text(self._text(), "utf-8")
        job = FunctionJob(
            str(folder / "step.bin"),
            str(folder / "arrays.npz"),
            str(folder / JAX_FILE),
            dict(self.states),
            STEPS,
            str(folder / "told.json"),
        )
        run_processes(folder, {"the step": (job, self.devices)})
        told: dict[str, Any] = json.loads(Path(job.out).read_text("utf-8"))
        return told


def jax_step(
    graph: Graph,
    fn: Callable[..., Any],
    *args: Any,
    plan: Plan | str | Path,
    state: Mapping[int, Any],
    target: Target | str | Path | None = None,
) -> JaxStep:
    """A training step with the shardings of a plan whose chips share batch or layers (training-steps.md).

    Args:
      graph: of :func:`go_opt.from_jax` for the same function, arguments and ``state``.
      fn, args, state: the function, its arguments, and its states by positions.
      plan: a plan, or the path of a plan file.
      target: None: the plan's own.

    Raises:
      InvalidInputError: the graph is of other arguments.
      PlanError: the plan is of another step or target, breaks a rule, or its chips are no replicas.
    """
    check_installed("jax_step", "jax")
    if not all(isinstance(key, int) for key in state):
        raise InvalidInputError("state of jax_step is by positions of arguments.", field="state")
    graph, on, decided = whole_case(graph, target, plan, None)
    levels = _levels(graph, decided)
    check_can_run(verify(planned_graph(graph, decided), on, decided))
    import jax

    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(args)]
    if [math.prod(shape) for shape in shapes] != graph.tensor_elements[: len(shapes)].tolist():
        raise InvalidInputError(f"graph {graph.name!r} is of arguments of other sizes.")
    kept = {one.read for one in graph.states}
    arguments = tuple(_spec(levels, k, shape, is_state=k in kept) for k, shape in enumerate(shapes))
    of_result = jax.eval_shape(fn, *args)
    states = _state_pairs(args, of_result, state)
    following = {j: arguments[i] for i, j in states.items()}
    results = tuple(following.get(j, ()) for j in range(len(jax.tree.leaves(of_result))))
    axes = {one.axis: one.parts for one in reversed(levels)}
    return JaxStep(fn, args, graph, decided, axes, arguments, results, states)


class _Level(NamedTuple):
    """The splits of a level: each op of a graph is divided among the devices of an axis, or copied."""

    axis: str
    parts: int
    graph: Graph
    factors: Mapping[str, str]  # by op; empty: copies
    split: SplitGraph


def _levels(graph: Graph, plan: Plan) -> tuple[_Level, ...]:
    """The levels of a plan, if each op is divided or copied among all chips of each.

    Raises:
      PlanError: it is not.
    """
    found, before = list[_Level](), graph
    for own, split in split_levels(graph, plan.splits):
        parts = {one.parts for one in own}
        if len(parts) != 1 or sorted(one.op for one in own) != sorted(before.op_names):
            break
        is_data = any(one.bucket for one in own)  # of gradients
        factors = {one.op: one.factor for one in own}
        found.append(_Level(DATA if is_data else TENSOR, parts.pop(), before, factors, split))
        before = split.graph
    if plan.rewrites or len(found) != 1 + max((one.level for one in plan.splits), default=0):
        raise PlanError(
            "the plan is not for JAX shardings, as its chips are no replicas that each compute a share of "
            "every op or a copy; plan with --objective step on a larger batch.",
            field="plan",
        )
    return tuple(found)


def _spec(levels: Sequence[_Level], tensor: int, shape: tuple[int, ...], *, is_state: bool) -> _Spec:
    """How an array of the arguments lies: an input in parts if an op reads it so, a state if all ops do."""
    spec: list[tuple[str, ...]] = [() for _ in shape]
    lying = {tensor: shape}  # what there is of the array, and its shape, in the graph before a level
    for level in levels:
        divided = {_dimension(level, k, of, is_state=is_state) for k, of in lying.items()}
        if len(divided - {None}) > 1:
            raise _in_several_ways(levels[0].graph, tensor)
        d = next(iter(divided - {None}), None)
        if d is not None:
            spec[d] = (*spec[d], level.axis)
        names, held = level.split.graph.tensor_names, level.split.held
        made = {name: held[name] if name in held else Held(level.graph.tensor_index.get(name, -1), ())
                for name in names}  # fmt: skip
        lying = {
            level.split.graph.tensor_index[name]: tuple(
                size // level.parts if of.piece and i == d else size
                for i, size in enumerate(lying[of.tensor])
            )
            for name, of in made.items()
            if of.tensor in lying
        }
    while spec and not spec[-1]:
        spec.pop()
    return tuple(spec)


def _dimension(level: _Level, k: int, shape: tuple[int, ...], *, is_state: bool) -> int | None:
    """The dimension along which the ops of a level divide a tensor; None if they do not."""
    graph, periods = level.graph, set[int]()
    for op in graph.readers_of(k):
        row, name = graph.rule_of(op), level.factors[graph.op_names[op]]
        if row is None or k not in row.operands:
            continue  # it only touches the state
        names = [one.name for one in row.rule.factors]
        periods.add(period_in(graph, op, names.index(name), k) if name else 0)
    if not is_state:
        periods.discard(0)
    if len(periods) != 1 or 0 in periods:
        if len(periods - {0}) > 1:
            raise _in_several_ways(graph, k)
        return None
    period = periods.pop()
    for d, size in enumerate(shape):
        if size % level.parts == 0 and math.prod(shape[d:]) == period:
            return d
    raise PlanError(
        f"the plan divides {graph.tensor_names[k]!r} along no dimension of its shape {list(shape)}.",
        field="splits",
    )


def _in_several_ways(graph: Graph, k: int) -> PlanError:
    return PlanError(f"the plan divides {graph.tensor_names[k]!r} in several ways.", field="splits")


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    """What divides a dimension, as an entry of a ``PartitionSpec``."""
    return axes if len(axes) > 1 else axes[0] if axes else None


def _state_pairs(args: tuple[Any, ...], of_result: Any, state: Mapping[Any, Any]) -> dict[int, int]:
    """The arrays of arguments that are states, and of results that are their next values, by number."""
    import jax

    several = of_result if isinstance(of_result, tuple | list | dict) else (of_result,)
    keys = sorted(several) if isinstance(several, dict) else list(range(len(several)))
    pairs = dict[int, int]()
    for position, given in state.items():
        key = given[0] if isinstance(given, tuple) else given
        count = len(jax.tree.leaves(args[position]))
        first = len(jax.tree.leaves(args[:position]))
        result = sum(len(jax.tree.leaves(several[one])) for one in keys[: keys.index(key)])
        pairs |= {first + i: result + i for i in range(count)}
    return pairs


def _argument_names(args: tuple[Any, ...]) -> list[str]:
    import jax

    return [f"argument{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(args)]


def _result_names(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    import jax

    found = jax.tree_util.tree_leaves_with_path(jax.eval_shape(fn, *args))
    return [f"result{jax.tree_util.keystr(path)}" for path, _ in found]


def _planned(graph: Graph, plan: Plan, axes: Mapping[str, int]) -> tuple[float, int]:
    """A device's share of the step's FLOPs with its part of the batch, and the elements of states."""
    first, replicas = {one.op: one.factor for one in plan.splits if not one.level}, axes.get(DATA, 1)
    share = np.ones(graph.num_ops)
    if TENSOR in axes:
        share[[bool(first[name]) for name in graph.op_names]] /= axes[TENSOR]
    along = batch_factors(graph, replicas)
    share[[op for op in along if TENSOR in axes or first[graph.op_names[op]]]] /= replicas
    planned = planned_graph(graph, plan)
    held = sum(int(planned.tensor_elements[state.read]) for state in planned.states)
    return float(share @ graph.op_flops / graph.op_flops.sum()), held // math.prod(axes.values())


_TEXT: Final = '''\
"""JAX shardings of the training step {model}, planned for {target}. Written by go-opt {version}.

    jax.jit(step, in_shardings=in_shardings(args), out_shardings=out_shardings(jax.eval_shape(step, *args)))
"""

import math

import numpy as np
from jax import devices, tree
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

AXES = {axes}  # of the mesh; the devices of the last one are neighbours

# The arrays of arguments and results, as JAX flattens them.
ARGUMENTS = {{
{arguments}}}
RESULTS = {{
{results}}}


def mesh(of=None):
    """The mesh of all devices, or of those given."""
    found = (devices() if of is None else of)[: math.prod(AXES.values())]
    return Mesh(np.array(found).reshape(tuple(AXES.values())), tuple(AXES))


def in_shardings(args, of=None):
    """Of the tuple of arguments, a tree of the same form."""
    return _tree(args, ARGUMENTS, of)


def out_shardings(results, of=None):
    """Of the results, or of their shapes."""
    return _tree(results, RESULTS, of)


def _tree(like, specs, of):
    on = mesh(of)
    return tree.unflatten(tree.structure(like), [NamedSharding(on, spec) for spec in specs.values()])
'''

"""The stage models of a plan, and their manifest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import onnx_ir as ir

from go_opt.env.copies.splits import planned_graph, unsplit_graph
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.peak_memory import plan_buffers
from go_opt.env.target import Target
from go_opt.errors import ModelError
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.model.graph import Graph, NamedState
from go_opt.model.plan import Plan
from go_opt.run import manifest as facts
from go_opt.run.cut.cutting import CutStage, stages_of_plan
from go_opt.run.cut.reads import Reads
from go_opt.run.cut.rewrites import rewrite_nodes
from go_opt.run.cut.source import model_of_plan
from go_opt.run.cut.splits import DividedState, split_nodes
from go_opt.run.cut.stage_model import output_tensor, stage_model, weight_bytes

_HOST: Final = CutStage(chips=(), kernels=(), relays=(), sources={}, makes=(), compute_s=0.0)


@dataclass(frozen=True)
class PlanModels:
    """The stages of a plan with their models; each comes after those it reads from."""

    whole: ir.Model
    stages: tuple[CutStage, ...]
    models: tuple[ir.Model, ...]
    made_by: Mapping[str, int]  # tensor -> stage
    readers: Mapping[str, tuple[int, ...]]  # tensor -> the other stages that read it
    leaves: Mapping[ir.Value, int | None]  # output of the model -> the stage it leaves from; None: the host
    host: ir.Model | None  # joins outputs
    states: tuple[NamedState, ...]  # the next value of one that never changes is the state itself
    host_states: tuple[NamedState, ...] = ()  # inputs and outputs of the models, which the host keeps
    divided: tuple[DividedState, ...] = ()
    is_changed: bool = False  # whether ``whole`` has rewritten or split ops, unlike the model's file

    @property
    def by_number(self) -> dict[int | None, ir.Model]:
        """The models of the stages by their numbers, and of the host as None."""
        found: dict[int | None, ir.Model] = dict(enumerate(self.models))
        return found | ({None: self.host} if self.host else {})


def plan_models(lowered: LoweredModel, graph: Graph, target: Target, plan: Plan) -> PlanModels:
    """Cut a model into the stages of ``plan``.

    Raises:
      ModelError, PlanError: something cannot be cut; the message names it.
    """
    whole = model_of_plan(lowered)
    states = lowered.states(plan.bindings).states
    rewrite_nodes(whole.graph, unsplit_graph(graph, replace(plan, rewrites=())), plan.rewrites)
    made = split_nodes(whole.graph, unsplit_graph(graph, plan), plan.splits, states)
    graph = planned_graph(graph, plan)
    reads = Reads(whole.graph, graph.op_index)
    cut = cut_models(whole, reads, graph, target, plan, made.parts, made.states)
    on_host = tuple(state for state in cut.states if state.read in plan.host_states)
    kept = tuple(state for state in cut.states if state not in on_host)
    cut = replace(cut, states=kept, host_states=on_host, divided=tuple(made.divided))
    return replace(cut, is_changed=bool(plan.splits or plan.rewrites))


def cut_models(
    whole: ir.Model,
    reads: Reads,
    graph: Graph,
    target: Target,
    plan: Plan,
    parts: Collection[ir.Value] = (),
    states: Sequence[NamedState] = (),
) -> PlanModels:
    """Like :func:`plan_models` for a model in memory, which several plans may cut.

    Args:
      parts: the parts of outputs that the host joins.
      states: by the names of the model's inputs and outputs.
    """
    _check_nodes(whole.graph, graph)
    stages = stages_of_plan(graph, target, plan, reads)
    if any(split.collective for split in plan.splits):
        left = {str(base.name) for output in whole.graph.outputs for base in reads.bases_of([output])}
        stages = _useful(stages, left)
    made_by = {tensor: i for i, stage in enumerate(stages) for tensor in stage.makes}
    readers: dict[str, list[int]] = {}
    for i, stage in enumerate(stages):
        for tensor in sorted(stage.needs):
            if made_by.get(tensor, i) != i:
                readers.setdefault(tensor, []).append(i)
    bases = {output: reads.bases_of([output]) for output in whole.graph.outputs}
    stay = _unchanged(bases, states)
    bases = {output: of for output, of in bases.items() if output.name not in stay}
    states = tuple(state._replace(next=state.read) if state.next in stay else state for state in states)
    read = {state.read for state in states}
    # An output that no op computes leaves from the first stage, or the one that has the state.
    kept_by = {name: i for i, stage in enumerate(stages) for name in read & stage.needs}
    home = kept_by | made_by
    leaves = {
        output: None if set(parts) & set(of) else max((home.get(str(k.name), 0) for k in of), default=0)
        for output, of in bases.items()
    }
    sent = {*readers, *(str(part.name) for part in parts)}
    models = tuple(
        stage_model(
            whole,
            reads,
            stage,
            [tensor for tensor in stage.makes if tensor in sent],
            [output for output in leaves if leaves[output] == i],
            read,
        )
        for i, stage in enumerate(stages)
    )
    joined = [output for output in leaves if leaves[output] is None]
    host = stage_model(whole, reads, _HOST, [], joined) if joined else None
    return PlanModels(
        whole,
        tuple(stages),
        models,
        made_by,
        {name: tuple(row) for name, row in readers.items()},
        leaves,
        host,
        states,
    )


def _useful(stages: Sequence[CutStage], left: Collection[str]) -> list[CutStage]:
    """The stages that make something for others, or what is ``left``: not copies that nothing reads."""
    needed = {tensor for stage in stages for tensor in stage.needs}.union(left)
    return [stage for stage in stages if not needed.isdisjoint(stage.makes)]


def _unchanged(
    bases: Mapping[ir.Value, tuple[ir.Value, ...]], states: Sequence[NamedState]
) -> set[str | None]:
    """The next values that are views of their states."""
    following = {state.next for state in states}
    return {
        output.name
        for output, of in bases.items()
        if output.name in following and all(base.producer() is None for base in of)
    }


def _check_nodes(nodes: ir.Graph, graph: Graph) -> None:
    """Reject a model in which an op is not exactly one node."""
    count = Counter(node.name for node in nodes)
    odd = next((name for name in graph.op_names if count[name] != 1), None)
    if odd is not None:
        raise ModelError(f"op {odd!r} must be one node of the model, but {count[odd]} have that name.")


def manifest_of(
    cut: PlanModels, graph: Graph, target: Target, plan: Plan, file_of: Callable[[int | None], str]
) -> facts.Manifest:
    """The manifest of the stages; ``file_of`` names the file of each stage's model, of None the host's."""
    metrics = evaluate_plan(graph, target, plan)
    inputs = [value for value in cut.whole.graph.inputs if not value.is_initializer()]
    states, on_host = (tuple(_states(cut, of)) for of in (cut.states, cut.host_states))
    read, following = {state.read for state in states}, {state.next for state in states}
    models = cut.by_number.values()
    crossing = [value for model in models for value in (*model.graph.inputs, *model.graph.outputs)]
    wholes = [value for one in cut.divided for value in one.values]
    return facts.Manifest(
        **facts.PlannedModel.fields_of(graph, plan, metrics.interval_s),
        latency_s=metrics.latency_s,
        bottleneck=metrics.bottleneck,
        inputs=tuple(
            dict.fromkeys(
                [
                    *(str(value.name) for value in inputs if value.name not in read),
                    *(state.read for state in on_host),
                ]
            )
        ),
        outputs=tuple(
            facts.ModelOutput(str(output.name), output_tensor(output), stage)
            for output, stage in cut.leaves.items()
            if output.name not in following
        ),
        states=states,
        host_states=on_host,
        sequences=_sequences((*states, *on_host), plan),
        tensors=tuple({str(value.name): _tensor(value) for value in (*inputs, *crossing, *wholes)}.values()),
        stages=_stages(cut, file_of),
        host=_host(cut, cut.host, file_of(None)) if cut.host else None,
        memory=plan_buffers(graph, target, plan),
    )


def _host(cut: PlanModels, model: ir.Model, file: str) -> facts.HostModel:
    return facts.HostModel(
        file,
        _inputs(cut, model),
        tuple(str(value.name) for value in model.graph.outputs),
        tuple(str(node.name) for node in model.graph),
    )


def _inputs(cut: PlanModels, model: ir.Model) -> tuple[facts.StageInput, ...]:
    states = {state.read for state in cut.states}
    names = [str(value.name) for value in model.graph.inputs if value.name not in states]
    return tuple(facts.StageInput(name, cut.made_by.get(name)) for name in names)


def _states(cut: PlanModels, states: Sequence[NamedState]) -> Iterator[facts.StageState]:
    inputs = [{str(value.name): value for value in model.graph.inputs} for model in cut.models]
    written = {str(output.name): (output, stage) for output, stage in cut.leaves.items()}
    for state in states:
        readers = tuple(i for i, values in enumerate(inputs) if state.read in values)
        output, writer = written.get(state.next, (None, None))
        value = next((inputs[i][state.read] for i in readers), None)
        ends = [_tensor(one).bytes for one in (value, output) if one is not None]
        initial = "file" if value is not None and value.is_initializer() else "zeros"
        if ends:
            part = next((_part(one) for one in cut.divided if one.part.read == state.read), None)
            yield facts.StageState(*state, readers, writer, max(ends), initial, part)


def _part(divided: DividedState) -> facts.StatePart:
    cuts = tuple((cut.period, cut.start, cut.stop) for cut in divided.piece)
    return facts.StatePart(divided.whole.read, divided.whole.next, cuts)


def _sequences(states: Sequence[facts.StageState], plan: Plan) -> int:
    if any(state.scope == "model" for state in states):
        return 1
    return plan.sequences if states else 0


def _stages(cut: PlanModels, file_of: Callable[[int | None], str]) -> tuple[facts.Stage, ...]:
    parts = Counter(stage.chips for stage in cut.stages)
    seen: Counter[tuple[int, ...]] = Counter()
    following = {state.next for state in cut.states}
    without_op = {node.name for node in cut.whole.graph} - {op for stage in cut.stages for op in stage.ops}
    rows = []
    for i, (stage, model) in enumerate(zip(cut.stages, cut.models, strict=True)):
        rows.append(
            facts.Stage(
                stage=i,
                file=file_of(i),
                chips=stage.chips,
                replication=len(stage.chips),
                part=seen[stage.chips],
                parts=parts[stage.chips],
                inputs=_inputs(cut, model),
                outputs=tuple(
                    facts.StageOutput(str(value.name), cut.readers.get(str(value.name), ()))
                    for value in model.graph.outputs
                    if value.name not in following or value.name in cut.readers
                ),
                kernels=stage.kernels,
                relays=tuple(facts.Relay(relay.source, relay.tensor) for relay in stage.relays),
                nodes_without_op=tuple(str(node.name) for node in model.graph if node.name in without_op),
                weight_bytes=weight_bytes(model),
                compute_s=stage.compute_s,
            )
        )
        seen[stage.chips] += 1
    return tuple(rows)


def _tensor(value: ir.Value) -> facts.Tensor:
    if value.dtype is None or value.shape is None or not value.shape.is_static():
        raise ModelError(f"tensor {value.name!r} goes from one stage to another and has no known size.")
    shape = value.shape.numpy()
    if value.dtype == ir.DataType.STRING:
        return facts.Tensor(str(value.name), "string", shape, 0)
    bits = math.prod(shape) * value.dtype.bitwidth
    return facts.Tensor(str(value.name), value.dtype.numpy().name, shape, -(-bits // 8))

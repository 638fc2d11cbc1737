"""The stage models of a plan, and their manifest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from go_opt.env.copies.splits import planned_graph
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.peak_memory import plan_buffers
from go_opt.env.target import Target
from go_opt.errors import ModelError
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run import manifest as facts
from go_opt.run.cut.cutting import CutStage, stages_of_plan
from go_opt.run.cut.reads import Reads
from go_opt.run.cut.source import model_of_plan
from go_opt.run.cut.splits import split_nodes
from go_opt.run.cut.stage_model import output_tensor, stage_model, weight_bytes


@dataclass(frozen=True)
class PlanModels:
    """The stages of a plan with their models; each comes after those it reads from."""

    whole: ir.Model
    stages: tuple[CutStage, ...]
    models: tuple[ir.Model, ...]
    made_by: Mapping[str, int]  # tensor -> stage
    readers: Mapping[str, tuple[int, ...]]  # tensor -> the other stages that read it
    leaves: Mapping[ir.Value, int]  # output of the model -> the stage it leaves from
    output_parts: Mapping[str, facts.OutputPart] = field(default_factory=dict)
    is_split: bool = False  # whether ``whole`` has split ops, unlike the model's file


def plan_models(lowered: LoweredModel, graph: Graph, target: Target, plan: Plan) -> PlanModels:
    """Cut a model into the stages of ``plan``.

    Raises:
      ModelError, PlanError: something cannot be cut; the message names it.
    """
    whole = model_of_plan(lowered)
    _refuse_views_of_parts(whole.graph, graph, plan)
    output_parts = split_nodes(whole.graph, graph, plan.splits)
    graph = planned_graph(graph, plan)
    cut = cut_models(whole, Reads(whole.graph, graph.op_index), graph, target, plan)
    return replace(cut, output_parts=output_parts, is_split=bool(plan.splits))


def _refuse_views_of_parts(nodes: ir.Graph, graph: Graph, plan: Plan) -> None:
    reads = Reads(nodes, graph.op_index)
    for split in plan.splits:
        made = set(reads.op_node[split.op].outputs)
        for output in nodes.outputs if not split.joined else ():
            if output not in made and made & set(reads.bases_of([output])):
                problem = f"output {output.name!r} of the model is a view of its output"
                raise ModelError(f"op {split.op!r} cannot stay in parts: {problem}.")


def cut_models(whole: ir.Model, reads: Reads, graph: Graph, target: Target, plan: Plan) -> PlanModels:
    """Like :func:`plan_models` for a model in memory, which several plans may cut."""
    _check_nodes(whole.graph, graph)
    stages = stages_of_plan(graph, target, plan, reads)
    made_by = {tensor: i for i, stage in enumerate(stages) for tensor in stage.makes}
    readers: dict[str, list[int]] = {}
    for i, stage in enumerate(stages):
        for tensor in sorted(stage.needs):
            if made_by.get(tensor, i) != i:
                readers.setdefault(tensor, []).append(i)
    # An output that no op computes leaves from the first stage.
    leaves = {
        output: max((made_by.get(str(base.name), 0) for base in reads.bases_of([output])), default=0)
        for output in whole.graph.outputs
    }
    models = tuple(
        stage_model(
            whole,
            reads,
            stage,
            [tensor for tensor in stage.makes if tensor in readers],
            [output for output in leaves if leaves[output] == i],
        )
        for i, stage in enumerate(stages)
    )
    return PlanModels(
        whole, tuple(stages), models, made_by, {name: tuple(row) for name, row in readers.items()}, leaves
    )


def _check_nodes(nodes: ir.Graph, graph: Graph) -> None:
    """Reject a model in which an op is not exactly one node."""
    count = Counter(node.name for node in nodes)
    odd = next((name for name in graph.op_names if count[name] != 1), None)
    if odd is not None:
        raise ModelError(f"op {odd!r} must be one node of the model, but {count[odd]} have that name.")


def manifest_of(
    cut: PlanModels, graph: Graph, target: Target, plan: Plan, file_of: Callable[[int], str]
) -> facts.Manifest:
    """The manifest of the stages; ``file_of`` names the file of each stage's model."""
    metrics = evaluate_plan(graph, target, plan)
    inputs = [value for value in cut.whole.graph.inputs if not value.is_initializer()]
    crossing = [value for model in cut.models for value in (*model.graph.inputs, *model.graph.outputs)]
    return facts.Manifest(
        **facts.PlannedModel.fields_of(graph, plan, metrics.interval_s),
        latency_s=metrics.latency_s,
        bottleneck=metrics.bottleneck,
        inputs=tuple(str(value.name) for value in inputs),
        outputs=tuple(
            facts.ModelOutput(
                str(output.name),
                output_tensor(output),
                cut.leaves[output],
                cut.output_parts.get(str(output.name)),
            )
            for output in cut.whole.graph.outputs
        ),
        tensors=tuple({str(value.name): _tensor(value) for value in (*inputs, *crossing)}.values()),
        stages=_stages(cut, file_of),
        memory=plan_buffers(graph, target, plan),
    )


def _stages(cut: PlanModels, file_of: Callable[[int], str]) -> tuple[facts.Stage, ...]:
    parts = Counter(stage.chips for stage in cut.stages)
    seen: Counter[tuple[int, ...]] = Counter()
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
                inputs=tuple(
                    facts.StageInput(str(value.name), cut.made_by.get(str(value.name)))
                    for value in model.graph.inputs
                ),
                outputs=tuple(
                    facts.StageOutput(str(value.name), cut.readers.get(str(value.name), ()))
                    for value in model.graph.outputs
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

"""Exports a plan: stage models and the manifest that says how they fit together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from go_opt.common.version import VERSION
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.model.metrics import Metrics
from go_opt.env.target import Target
from go_opt.errors import ModelError
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run.export.cutting import Stage, stages_of_plan
from go_opt.run.export.manifest import (
    Manifest,
    ModelOutput,
    RelayFact,
    StageFact,
    StageInput,
    StageOutput,
    TensorFact,
)
from go_opt.run.export.reads import Reads
from go_opt.run.export.source import sized_model
from go_opt.run.export.stage_model import output_tensor, stage_model


class StageModels:
    """The stage models of a plan and what connects them."""

    def __init__(self, lowered: LoweredModel, graph: Graph, target: Target, plan: Plan) -> None:
        self._graph, self._target, self._plan = graph, target, plan
        self._model = sized_model(lowered)
        self._reads = Reads(self._model.graph, graph.op_index)
        missing = next((name for name in graph.op_names if name not in self._reads.op_node), None)
        if missing is not None:
            raise ModelError(f"op {missing!r} is no node of the model, so that no stage can have it.")
        self.stages = stages_of_plan(graph, target, plan, self._reads)
        self.models = self._cut()

    def _cut(self) -> list[ir.Model]:
        made_by = {tensor: i for i, stage in enumerate(self.stages) for tensor in stage.makes}
        self._readers: dict[str, list[int]] = {}
        for i, stage in enumerate(self.stages):
            for tensor in sorted(stage.needs):
                if made_by.get(tensor, i) != i:
                    self._readers.setdefault(tensor, []).append(i)
        self._leaves = self._stages_of_outputs(made_by)
        self._made_by = made_by
        return [
            stage_model(
                self._model,
                self._reads,
                stage,
                [tensor for tensor in stage.makes if tensor in self._readers],
                [value for value, leaves in self._leaves.items() if leaves == i],
            )
            for i, stage in enumerate(self.stages)
        ]

    def _stages_of_outputs(self, made_by: Mapping[str, int]) -> dict[ir.Value, int]:
        """Each output of the model leaves from where its op is; what no op computes from the first stage."""
        leaves = {}
        for value in self._model.graph.outputs:
            bases = [str(base.name) for base in self._reads.bases_of([value])]
            leaves[value] = max((made_by[base] for base in bases if base in made_by), default=0)
        return leaves

    def manifest(self, files: Iterable[str]) -> Manifest:
        """What the stages take and give; ``files`` are those of their models."""
        graph, plan = self._graph, self._plan
        metrics = evaluate_plan(graph, self._target, plan)
        tensors: dict[str, TensorFact] = {}
        stages = []
        for i, (stage, model, file) in enumerate(zip(self.stages, self.models, files, strict=True)):
            for value in (*model.graph.inputs, *model.graph.outputs):
                tensors[str(value.name)] = _tensor(value)
            stages.append(self._stage(i, stage, model, file))
        given = [value for value in self._model.graph.inputs if not value.is_initializer()]
        for value in given:
            tensors.setdefault(str(value.name), _tensor(value))
        return Manifest(
            model=graph.name,
            target=plan.target,
            dims=dict(plan.dims),
            precision=plan.precision,
            graph_fingerprint=plan.graph_fingerprint,
            target_fingerprint=plan.target_fingerprint,
            version=VERSION,
            interval_s=metrics.interval_s,
            latency_s=metrics.latency_s,
            bottleneck=metrics.bottleneck,
            inputs=tuple(str(value.name) for value in given),
            outputs=tuple(
                ModelOutput(str(value.name), output_tensor(value), self._leaves[value])
                for value in self._model.graph.outputs
            ),
            tensors=tuple(tensors.values()),
            stages=tuple(stages),
        )

    def _stage(self, number: int, stage: Stage, model: ir.Model, file: str) -> StageFact:
        return StageFact(
            stage=number,
            file=file,
            chips=stage.chips,
            replication=len(stage.chips),
            inputs=tuple(
                StageInput(str(value.name), self._made_by.get(str(value.name)))
                for value in model.graph.inputs
            ),
            outputs=tuple(
                StageOutput(str(value.name), tuple(self._readers.get(str(value.name), ())))
                for value in model.graph.outputs
            ),
            ops=stage.ops,
            kernels=stage.kernels,
            clones=tuple(op for op in stage.ops if op in stage.clones),
            relays=tuple(RelayFact(relay.source, relay.tensor) for relay in stage.relays),
            compute_s=stage.compute_s,
            weight_bytes=sum(
                value.const_value.nbytes
                for value in model.graph.initializers.values()
                if value.const_value is not None
            ),
        )


def _tensor(value: ir.Value) -> TensorFact:
    dtype = value.dtype
    assert dtype is not None
    assert value.shape is not None
    shape = tuple(int(size) for size in value.shape)
    if dtype == ir.DataType.STRING:
        return TensorFact(str(value.name), "string", shape, 0)
    elements = 1
    for size in shape:
        elements *= size
    return TensorFact(str(value.name), dtype.numpy().name, shape, -(-elements * dtype.bitwidth // 8))

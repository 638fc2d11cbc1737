"""The stages of a plan: their ops and relays, their models, and the manifest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import networkx as nx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from go_opt.common.version import VERSION
from go_opt.env.copies.relays import plan_tables, relay_name, relays_of
from go_opt.env.copies.splits import planned_graph, unsplit_graph
from go_opt.env.evaluation import evaluate_plan
from go_opt.env.kernels.numbering import kernel_seconds, number_kernels
from go_opt.env.peak_memory import plan_buffers
from go_opt.env.target import Target
from go_opt.errors import ModelError, PlanError
from go_opt.frontends.onnx.lowered import LoweredModel
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run import manifest as facts
from go_opt.run.cut.rewrites import rewrite_nodes
from go_opt.run.cut.source import Reads, model_of_plan
from go_opt.run.cut.splits import SplitNodes, split_nodes


@dataclass(frozen=True)
class CutStage:
    """The work of one part of a chip (or of all chips of a replicated stage) per inference."""

    chips: tuple[int, ...]
    kernels: tuple[tuple[str, ...], ...] = ()  # in execution order
    relays: Mapping[facts.Relay, str] = field(default_factory=dict)  # with the tensor of the model
    sources: Mapping[str, str] = field(default_factory=dict)  # tensor of the model -> what its ops read
    makes: tuple[str, ...] = ()  # tensors that its ops and relays write
    compute_s: float = 0.0

    @property
    def needs(self) -> list[str]:
        """Tensors that its ops and relays read."""
        return list(dict.fromkeys([*self.sources.values(), *(relay.source for relay in self.relays)]))

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of all ops in execution order."""
        return tuple(op for kernel in self.kernels for op in kernel)


def stages_of_plan(graph: Graph, target: Target, plan: Plan, reads: Reads) -> list[CutStage]:
    """The stages of ``plan`` in an order in which each can run.

    Raises:
      PlanError: an op would run before the producer of a tensor that the plan treats as a constant.
    """
    placed = plan_tables(graph, target, plan)
    steps = _steps(graph, plan, reads)
    order = placed.order.tolist()
    _check_order([steps[i] for i in order])
    kernel_of = number_kernels(placed.order, placed.fusion_group)
    kernels: list[list[CutStage]] = [[] for _ in range(int(kernel_of.max()) + 1)]
    for i in order:
        kernels[kernel_of[i]].append(steps[i])
    chips = [kernel[0].chips[0] for kernel in kernels]
    parts = parts_of(
        chips,
        [[source for step in kernel for source in step.needs] for kernel in kernels],
        [[tensor for step in kernel for tensor in step.makes] for kernel in kernels],
    )
    seconds = kernel_seconds(placed.tables, kernel_of)
    size = dict(zip(placed.placement.tolist(), placed.replication.tolist(), strict=True))
    return [
        _joined(
            [kernels[kernel] for kernel in part],
            range(chip, chip + size[chip]),
            float(seconds[target.chip_kind[chip], part].sum()),
        )
        for part in parts
        for chip in [chips[part[0]]]
    ]


def _steps(graph: Graph, plan: Plan, reads: Reads) -> list[CutStage]:
    """Each op and each relay as a stage, numbered as in the plan's tables."""
    relay_chips: dict[str, list[int]] = {}
    for tensor, chip in zip(*(column.tolist() for column in relays_of(graph, plan)), strict=True):
        relay_chips.setdefault(graph.tensor_names[tensor], []).append(chip)

    def relayed(tensor: str, chip: int) -> str:
        """The last relay before ``chip``, or the tensor itself."""
        before = [relay for relay in relay_chips.get(tensor, ()) if relay < chip]
        return relay_name(tensor, before[-1]) if before else tensor

    found = []
    for op, chip in zip(graph.op_names, plan.placement.tolist(), strict=True):
        tensors = [str(value.name) for value in reads.of_op(op)]
        sources = {tensor: relayed(tensor, chip) for tensor in tensors}
        makes = tuple(str(output.name) for output in reads.op_node[op].outputs if output.name)
        found.append(CutStage((chip,), ((op,),), sources=sources, makes=makes))
    for tensor, chips in relay_chips.items():
        for chip in chips:
            relay = facts.Relay(relayed(tensor, chip), relay_name(tensor, chip))
            found.append(CutStage((chip,), relays={relay: tensor}, makes=(relay.tensor,)))
    return found


def _joined(kernels: Sequence[Sequence[CutStage]], chips: Iterable[int], compute_s: float) -> CutStage:
    """Steps, kernel by kernel, as one stage."""
    steps = [step for kernel in kernels for step in kernel]
    named = (tuple(op for step in kernel for op in step.ops) for kernel in kernels)
    return CutStage(
        tuple(chips),
        tuple(kernel for kernel in named if kernel),
        {relay: tensor for step in steps for relay, tensor in step.relays.items()},
        {tensor: source for step in steps for tensor, source in step.sources.items()},
        tuple(tensor for step in steps for tensor in step.makes),
        compute_s,
    )


def _check_order(steps: Sequence[CutStage]) -> None:
    """Reject ops that run before the producers of their tensors."""
    maker = {tensor: i for i, step in enumerate(steps) for tensor in step.makes}
    for i, step in enumerate(steps):
        late = next((source for source in step.needs if maker.get(source, -1) >= i), None)
        if late is not None:
            raise PlanError(f"op {''.join(step.ops)!r} runs before tensor {late!r} is there, which it reads.")


def parts_of(
    chips: Sequence[int], needs: Sequence[Sequence[Hashable]], makes: Sequence[Sequence[Hashable]]
) -> list[list[int]]:
    """Parts, of one chip each, in an order in which each can run, as few as the order of kernels allows.

    A kernel joins the last part of its chip, unless that part would then depend on itself through another
    chip; then it starts a new part. Under acyclic dataflow, each chip is one part.

    Args:
      chips: of each kernel, in execution order.
      needs, makes: the tensors that each kernel reads and writes.

    Returns:
      The numbers of the kernels of each part.
    """
    parts: list[list[int]] = []
    waits = nx.DiGraph()  # from a part to those that read from it, by number
    last: dict[int, int] = {}
    made_by: dict[Hashable, int] = {}
    for kernel, chip in enumerate(chips):
        sources = {made_by[tensor] for tensor in needs[kernel] if tensor in made_by}
        part = last.get(chip)
        if part is None or any(nx.has_path(waits, part, source) for source in sources - {part}):
            part = last[chip] = len(parts)
            parts.append([])
            waits.add_node(part)
        parts[part].append(kernel)
        waits.add_edges_from((source, part) for source in sources - {part})
        made_by |= dict.fromkeys(makes[kernel], part)
    # Ties are broken by chip.
    order = nx.lexicographical_topological_sort(waits, key=lambda part: (chips[parts[part][0]], part))
    return [parts[part] for part in order]


MAX_MODEL_BYTES: Final = 2**31 - 2**26  # protobuf's limit of 2 GiB, minus room for nodes
_MIN_IR_VERSION: Final = 4  # in older versions, every initializer must also be an input


def output_tensor(value: ir.Value) -> str:
    """The stage's output tensor for an output of the model; a forwarded input needs a new name."""
    return str(value.name) if value.producer() is not None else f"{value.name}/output"


def stage_model(
    model: ir.Model,
    reads: Reads,
    stage: CutStage,
    tensors: Iterable[str],
    results: Iterable[ir.Value],
    states: Collection[str] = (),
) -> ir.Model:
    """The nodes of ``stage`` and the weights that they read, as a separate model.

    Args:
      tensors: the tensors that other stages read from it.
      results: the outputs of ``model`` that leave from this stage.
      states: inputs that change; the weights among them become inputs, with their values to begin with.
    """
    results = list(results)
    nodes, initializers, taken = reads.closure(stage.ops, results)
    view = ir.GraphView(
        taken,
        [value for value in results if value.producer() is not None],
        nodes=nodes,
        initializers=initializers,
        opset_imports=dict(model.graph.opset_imports),
        name=model.graph.name,
    )
    graph = view.clone()
    values = dict(zip(taken, graph.inputs, strict=True))
    for original, value in values.items():
        value.name = stage.sources.get(str(original.name), str(original.name))
    values |= {value: graph.initializers[str(value.name)] for value in initializers}
    graph.inputs.extend(values[value] for value in initializers if value.name in states)
    made = {output.name: output for node in graph for output in node.outputs if output.name}
    for relay, tensor in stage.relays.items():
        like = reads.written[tensor]
        made[relay.tensor] = _copy(
            graph, made.get(relay.source) or _input(graph, relay.source, like), relay.tensor
        )
    for value in results:
        if value.producer() is None:
            made[output_tensor(value)] = _copy(graph, values[value], output_tensor(value))
    graph.outputs.clear()
    graph.outputs.extend(made[tensor] for tensor in dict.fromkeys([*tensors, *map(output_tensor, results)]))
    version = max(model.ir_version, _MIN_IR_VERSION)
    cut = ir.Model(graph, ir_version=version, producer_name="go-opt", producer_version=VERSION)
    RemoveUnusedOpsetsPass()(cut)
    return cut


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, including those of bodies."""
    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _input(graph: ir.Graph, name: str, like: ir.Value) -> ir.Value:
    """The input of a stage with this name, created if missing."""
    found = next((value for value in graph.inputs if value.name == name), None)
    if found is None:
        found = ir.Value(name=name, type=like.type, shape=like.shape)
        graph.inputs.append(found)
    return found


def _copy(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    node = ir.node("Identity", [value], name=name)
    copy = node.outputs[0]
    copy.name, copy.type, copy.shape = name, value.type, value.shape
    graph.append(node)
    return copy


def write_model(model: ir.Model, path: Path) -> None:
    """Write a model; weights that do not fit into its file go to ``NAME.data`` in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if weight_bytes(model) > MAX_MODEL_BYTES:
        ir.save(model, path, external_data=f"{path.name}.data")
    else:
        ir.save(ir.external_data.load_to_model(model), path)


class PlanModels(NamedTuple):
    """The models of a plan's stages, each after those it reads from, and what they are."""

    whole: ir.Model  # with the ops that the plan rewrites and splits
    models: Mapping[int | None, ir.Model]  # by the number of the stage; None: the host's, which joins outputs
    manifest: facts.Manifest


def plan_models(
    lowered: LoweredModel, graph: Graph, target: Target, plan: Plan, file_of: Callable[[int | None], str]
) -> PlanModels:
    """Cut a model into the stages of ``plan``.

    Args:
      file_of: the file of each stage's model, of None the host's, for the manifest.

    Raises:
      ModelError, PlanError: something cannot be cut; the message names it.
    """
    whole = model_of_plan(lowered)
    states = lowered.states(plan.bindings).states
    rewrite_nodes(whole.graph, unsplit_graph(graph, replace(plan, rewrites=())), plan.rewrites)
    made = split_nodes(whole.graph, unsplit_graph(graph, plan), plan.splits, states)
    graph = planned_graph(graph, plan)
    reads = Reads(whole.graph, graph.op_index)
    return cut_models(whole, reads, graph, target, plan, file_of, made)


def cut_models(
    whole: ir.Model,
    reads: Reads,
    graph: Graph,
    target: Target,
    plan: Plan,
    file_of: Callable[[int | None], str],
    made: SplitNodes = SplitNodes(),  # noqa: B008
) -> PlanModels:
    """Like :func:`plan_models` for a model in memory, which several plans may cut."""
    _check_nodes(whole.graph, graph)
    cut = _Cut(whole, reads, stages_of_plan(graph, target, plan, reads), plan, made)
    return PlanModels(whole, cut.models, cut.manifest(graph, target, file_of))


def _check_nodes(nodes: ir.Graph, graph: Graph) -> None:
    """Reject a model in which an op is not exactly one node."""
    count = Counter(node.name for node in nodes)
    odd = next((name for name in graph.op_names if count[name] != 1), None)
    if odd is not None:
        raise ModelError(f"op {odd!r} must be one node of the model, but {count[odd]} have that name.")


class _Cut:
    """The models of stages, and what each gives to others."""

    def __init__(
        self, whole: ir.Model, reads: Reads, stages: Sequence[CutStage], plan: Plan, made: SplitNodes
    ) -> None:
        self._whole, self._plan, self._divided = whole, plan, made.divided
        bases = {output: reads.bases_of([output]) for output in whole.graph.outputs}
        if any(split.collective for split in plan.splits):  # copies that nothing reads make no stage
            needed = {tensor for stage in stages for tensor in stage.needs}
            needed |= {str(base.name) for of in bases.values() for base in of}
            stages = [stage for stage in stages if not needed.isdisjoint(stage.makes)]
        self._stages = stages
        self._made_by = {tensor: i for i, stage in enumerate(stages) for tensor in stage.makes}
        self._readers: dict[str, tuple[int, ...]] = {}  # of a tensor: the other stages that read it
        for i, stage in enumerate(stages):
            for tensor in stage.needs:
                if self._made_by.get(tensor, i) != i:
                    self._readers[tensor] = (*self._readers.get(tensor, ()), i)
        following = {state.next for state in made.states}
        stay = {
            output.name  # a view of its state
            for output, of in bases.items()
            if output.name in following and all(base.producer() is None for base in of)
        }
        self._states = [
            state._replace(next=state.read) if state.next in stay else state for state in made.states
        ]
        self._kept = {  # by the stages: inputs, and their next values
            state.read: state.next for state in self._states if state.read not in plan.host_states
        }
        read = {state.read for state in made.states}
        # An output that no op computes leaves from the first stage, or the one that has the state.
        kept_by = {name: i for i, stage in enumerate(stages) for name in read.intersection(stage.needs)}
        home, parts = kept_by | self._made_by, set(made.parts)
        self._leaves = {  # None: from the host
            output: None if parts.intersection(of) else max((home.get(str(k.name), 0) for k in of), default=0)
            for output, of in bases.items()
            if output.name not in stay
        }
        sent = {*self._readers, *(str(part.name) for part in parts)}
        self.models: dict[int | None, ir.Model] = {
            i: stage_model(
                whole,
                reads,
                stage,
                [tensor for tensor in stage.makes if tensor in sent],
                self._leaving(i),
                read,
            )
            for i, stage in enumerate(stages)
        }
        if joined := self._leaving(None):
            self.models[None] = stage_model(whole, reads, CutStage(()), [], joined)

    def _leaving(self, stage: int | None) -> list[ir.Value]:
        return [output for output, leaves in self._leaves.items() if leaves == stage]

    def manifest(self, graph: Graph, target: Target, file_of: Callable[[int | None], str]) -> facts.Manifest:
        """What the models are."""
        plan, metrics = self._plan, evaluate_plan(graph, target, self._plan)
        inputs = [value for value in self._whole.graph.inputs if not value.is_initializer()]
        every = list(self._state_rows())
        states = tuple(state for state in every if state.read not in plan.host_states)
        on_host = tuple(state for state in every if state.read in plan.host_states)
        read, following = {state.read for state in states}, {state.next for state in states}
        models = self.models.values()
        crossing = [value for model in models for value in (*model.graph.inputs, *model.graph.outputs)]
        wholes = [value for one in self._divided for value in one.values]
        names = [str(value.name) for value in inputs if value.name not in read]
        is_one = any(state.scope == "model" for state in every)
        return facts.Manifest(
            **facts.PlannedModel.fields_of(graph, plan, metrics.interval_s),
            latency_s=metrics.latency_s,
            bottleneck=metrics.bottleneck,
            inputs=tuple(dict.fromkeys([*names, *(state.read for state in on_host)])),
            outputs=tuple(
                facts.ModelOutput(str(output.name), output_tensor(output), stage)
                for output, stage in self._leaves.items()
                if output.name not in following
            ),
            states=states,
            host_states=on_host,
            sequences=1 if is_one else plan.sequences if every else 0,
            tensors=tuple(
                {str(value.name): _tensor(value) for value in (*inputs, *crossing, *wholes)}.values()
            ),
            stages=tuple(self._rows(file_of)),
            host=self._host(file_of(None)) if None in self.models else None,
            memory=plan_buffers(graph, target, plan),
        )

    def _state_rows(self) -> Iterator[facts.StageState]:
        inputs = {i: {str(value.name): value for value in one.graph.inputs} for i, one in self.models.items()}
        written = {str(output.name): (output, stage) for output, stage in self._leaves.items()}
        for state in self._states:
            readers = tuple(i for i, values in inputs.items() if i is not None and state.read in values)
            output, writer = written.get(state.next, (None, None))
            value = next((inputs[i][state.read] for i in readers), None)
            ends = [_tensor(one).bytes for one in (value, output) if one is not None]
            initial = "file" if value is not None and value.is_initializer() else "zeros"
            if ends:
                parts = (
                    facts.StatePart(one.whole.read, one.whole.next, one.piece)
                    for one in self._divided
                    if one.part.read == state.read
                )
                yield facts.StageState(*state, readers, writer, max(ends), initial, next(parts, None))

    def _inputs(self, model: ir.Model) -> tuple[facts.StageInput, ...]:
        names = [str(value.name) for value in model.graph.inputs if value.name not in self._kept]
        return tuple(facts.StageInput(name, self._made_by.get(name)) for name in names)

    def _host(self, file: str) -> facts.HostModel:
        model = self.models[None]
        written = tuple(str(value.name) for value in model.graph.outputs)
        return facts.HostModel(
            file, self._inputs(model), written, tuple(str(node.name) for node in model.graph)
        )

    def _rows(self, file_of: Callable[[int | None], str]) -> Iterator[facts.Stage]:
        parts = Counter(stage.chips for stage in self._stages)
        seen: Counter[tuple[int, ...]] = Counter()
        following = set(self._kept.values())
        without_op = {node.name for node in self._whole.graph}
        without_op -= {op for stage in self._stages for op in stage.ops}
        for i, stage in enumerate(self._stages):
            model = self.models[i]
            yield facts.Stage(
                stage=i,
                file=file_of(i),
                chips=stage.chips,
                replication=len(stage.chips),
                part=seen[stage.chips],
                parts=parts[stage.chips],
                inputs=self._inputs(model),
                outputs=tuple(
                    facts.StageOutput(str(value.name), self._readers.get(str(value.name), ()))
                    for value in model.graph.outputs
                    if value.name not in following or value.name in self._readers
                ),
                kernels=stage.kernels,
                relays=tuple(stage.relays),
                nodes_without_op=tuple(str(node.name) for node in model.graph if node.name in without_op),
                weight_bytes=weight_bytes(model),
                compute_s=stage.compute_s,
            )
            seen[stage.chips] += 1


def _tensor(value: ir.Value) -> facts.Tensor:
    if value.dtype is None or value.shape is None or not value.shape.is_static():
        raise ModelError(f"tensor {value.name!r} goes from one stage to another and has no known size.")
    shape = value.shape.numpy()
    if value.dtype == ir.DataType.STRING:
        return facts.Tensor(str(value.name), "string", shape, 0)
    bits = math.prod(shape) * value.dtype.bitwidth
    return facts.Tensor(str(value.name), value.dtype.numpy().name, shape, -(-bits // 8))

"""The stages of a plan: their ops and relays, their models, and the manifest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

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
from go_opt.model.graph import Graph, NamedState
from go_opt.model.plan import Plan
from go_opt.run import manifest as facts
from go_opt.run.cut.rewrites import rewrite_nodes
from go_opt.run.cut.source import Reads, model_of_plan
from go_opt.run.cut.splits import DividedState, split_nodes


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
    kept_by = {name: i for i, stage in enumerate(stages) for name in read.intersection(stage.needs)}
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
    host = stage_model(whole, reads, CutStage(()), [], joined) if joined else None
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
            parts = (
                facts.StatePart(one.whole.read, one.whole.next, one.piece)
                for one in cut.divided
                if one.part.read == state.read
            )
            yield facts.StageState(*state, readers, writer, max(ends), initial, next(parts, None))


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
                relays=tuple(stage.relays),
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

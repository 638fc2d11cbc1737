"""Calculon's seconds of a training step (github.com/calculon-ai/calculon), as a second cost beside ours.

It runs where the environment variable CALCULON names a checkout of it; measured with commit caa4b11.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

from go_opt.parallel import Case, Configuration, Transformer
from go_opt.parallel.block import Block, Row
from go_opt.parallel.configuration import RECOMPUTE, Recompute
from go_opt.parallel.search import MOST_SEQUENCES
from go_opt.parallel.step import Sums

VARIABLE: Final = "CALCULON"
_NODE: Final = 8
_NO_LIMIT_GIB: Final = 10_000


def checkout() -> Path | None:
    """The folder of Calculon; None where there is none."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


if checkout() is not None:
    sys.path.insert(0, str(checkout()))


@cache
def _system(limits_memory: bool) -> Any:
    from calculon.system import System

    folder = checkout()
    assert folder is not None, VARIABLE

    data = json.loads((folder / "systems" / "a100_80g.json").read_text())
    data["networks"][0]["must_be_filled"] = False
    if not limits_memory:
        data["mem1"]["GiB"] = _NO_LIMIT_GIB
    return System(data)


def calculon_step(
    model: Transformer, batch: int, chosen: Configuration, *, limits_memory: bool = False
) -> Any | None:
    """Calculon's model of a step after its run; None if it finds the configuration impossible."""
    system = _system(limits_memory)
    from calculon.llm.llm import Llm

    app = {
        "name": "gpt",
        "hidden": model.hidden,
        "feedforward": model.mlp,
        "seq_size": model.sequence,
        "attn_heads": model.heads,
        "attn_size": model.hidden // model.heads,
        "num_blocks": model.layers,
    }
    recompute = {"attention": "attn_only"}.get(chosen.recompute, chosen.recompute)
    execution = {
        "num_procs": chosen.devices,
        "tensor_par": chosen.tensor,
        "pipeline_par": chosen.pipeline,
        "data_par": chosen.data,
        "tensor_par_net": int(chosen.tensor > _NODE),
        "pipeline_par_net": int(chosen.devices > _NODE),
        "data_par_net": int(chosen.tensor * chosen.data > _NODE),
        "batch_size": batch,
        "microbatch_size": chosen.micro_batch,
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead",
        "activation_recompute": recompute,
        "pipeline_interleaving": chosen.stages_per_device,
        "optimizer_sharding": chosen.zero > 0,
        "tensor_par_comm_type": "rs_ag" if chosen.sequence_parallel else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": False,
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    found = Llm(Llm.Application(app), logging.getLogger("calculon"))
    try:
        found.compile(system, Llm.Execution.from_json(execution))
        found.run(system)
    except Llm.Error:
        return None
    return found


def calculon_grid(case: Case) -> Iterator[Configuration]:
    """All that Calculon's own search would try of the options that both have, by its own rules.

    Tensor ranks of one node, at most 32 sequences a micro-batch; no overlap, no offload, no fused activation.
    """
    from calculon.llm.llm import Llm

    model, devices = case.model, case.machine.devices
    for t in Llm.get_all_tensor_parallelisms(devices, model.hidden, model.heads):
        for p in Llm.get_all_pipeline_parallelisms(devices, t, model.layers) if t <= _NODE else ():
            d = Llm.get_data_parallelism(devices, t, p)
            sizes = (
                [] if case.batch % d else Llm.get_valid_microbatch_sizes(model.sequence, t, d, case.batch, p)
            )
            ways = product(
                [b for b in sizes if b <= MOST_SEQUENCES],
                Llm.get_valid_pipeline_interleavings(model.layers, p),
                (0, 1) if d > 1 else (0,),
                RECOMPUTE,
                (False, True) if t > 1 else (False,),
            )
            for b, v, zero, recompute, is_divided in ways:
                schedule = "interleaved" if v > 1 else "1f1b"
                yield Configuration(t, p, d, 1, b, schedule, v, zero, recompute, is_divided)


def calculon_s(case: Case, chosen: Configuration) -> float:
    """Seconds of a step by Calculon, without a limit of memory."""
    found = calculon_step(case.model, case.batch, chosen)
    return float("inf") if found is None else float(found.get_total_time())


@dataclass(frozen=True)
class CalculonCase(Case):
    """A step at Calculon's cost: its seconds and bytes of a layer, which ranks and schedules are made of.

    A step with as many layers on each rank that recompute alike takes what Calculon says of it. ZeRO 2 and 3,
    experts and the model's head are not known to it.
    """

    @property
    def memory_bytes(self) -> int:
        return int(_system(limits_memory=True).mem1.capacity)

    def block(self, chosen: Configuration) -> Block:
        kinds = [self._layer(chosen, kind) for kind in RECOMPUTE]
        first = kinds[0]
        forward_s, backward_s = first.get_fw_time(), first.get_bw_time()
        sums_s = [one.get_tp_comm_exposed_time() + one.get_recomm_exposed_time() for one in kinds]
        kept, working = zip(*(_kept_and_working(one) for one in kinds), strict=True)
        again_s = [one.get_recompute_time() for one in kinds]
        zeros = (0.0, 0.0, 0.0)
        return Block(
            forward_s, backward_s, _row(again_s), _row(sums_s), zeros, _row(kept), _row(working), 0.0, 0.0
        )

    def message_s(self, chosen: Configuration) -> float:
        if chosen.pipeline == 1:
            return 0.0
        size = 2.0 * chosen.micro_batch * self.model.sequence * self.model.hidden
        size /= chosen.tensor if chosen.sequence_parallel else 1
        return float(self._network(chosen.devices).time("p2p", size, 2))

    def waits(self, chosen: Configuration) -> int:
        is_piped = chosen.pipeline > 1
        return is_piped * (chosen.micro_batches(self.batch) * chosen.stages_per_device + chosen.pipeline - 1)

    def sums(self, chosen: Configuration) -> Sums:
        if chosen.data == 1:
            return Sums(0.0, 1, 0.0)
        network, size = self._network(chosen.tensor * chosen.data), self._states(chosen)._block_weight_space
        layers = self.model.layers / chosen.pipeline
        ops = ("reduce_scatter", "all_gather") if chosen.zero else ("all_reduce",)
        sum_s, *gather_s = (layers * network.time(op, size, chosen.data) for op in ops)
        return Sums(sum_s, 1, sum(gather_s))

    def optimizer_s(self, chosen: Configuration) -> float:
        return float(self._states(chosen).get_optim_step_time() * self.model.layers / chosen.pipeline)

    def state_bytes(self, chosen: Configuration, layers: int, *, is_end: bool) -> float:
        one = self._states(chosen)
        each = one._block_weight_space + one._block_weight_grad_space + one._block_optimizer_space
        return float(layers * each + one._block_weight_grad_space_no_sharding - one._block_weight_grad_space)

    def in_flight(self, chosen: Configuration, rank: int) -> float:
        """Of every rank as many as of the first."""
        number, v = chosen.micro_batches(self.batch), chosen.stages_per_device
        few = min(number, chosen.pipeline)
        return few * (1.0 + (chosen.pipeline - 1) / (v * chosen.pipeline)) if v > 1 else few

    def _network(self, reach: int) -> Any:
        return _system(limits_memory=True).get_network(int(reach > _NODE))

    def _layer(self, chosen: Configuration, kind: Recompute) -> Any:
        """One layer of one micro-batch on the devices of a tensor group."""
        alone = Configuration(
            tensor=chosen.tensor,
            micro_batch=chosen.micro_batch,
            recompute=kind,
            sequence_parallel=chosen.sequence_parallel,
        )
        return _run(replace(self.model, layers=1), chosen.micro_batch, alone)

    def _states(self, chosen: Configuration) -> Any:
        """One layer on each replica, for its weights and their update."""
        return _states(self.model, chosen.tensor, chosen.data if chosen.zero else 1)


@cache
def _states(model: Transformer, tensor: int, data: int) -> Any:
    alone = Configuration(tensor=tensor, data=data, zero=1 if data > 1 else 0)
    return _run(replace(model, layers=1), data, alone)


@cache
def _run(model: Transformer, batch: int, chosen: Configuration) -> Any:
    found = calculon_step(model, batch, chosen)
    assert found is not None, chosen
    return found


def _kept_and_working(one: Any) -> tuple[float, float]:
    """Bytes of a layer that wait for its backward pass, and of what is at work beside them."""
    working = one._block_act_working_space + one.get_act_grad_space()
    if one.exe.activation_recompute == "full":
        return float(one._block_act_checkpoint_size), float(working)
    return float(one._block_act_storage_space), float(working - one._block_act_storage_space)


def _row(values: Sequence[float]) -> Row:
    none, attention, full = map(float, values)
    return none, attention, full

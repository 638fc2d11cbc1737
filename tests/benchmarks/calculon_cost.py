"""Calculon's seconds of a training step (github.com/calculon-ai/calculon), as a second cost beside ours.

It runs where the environment variable CALCULON names a checkout of it; measured with commit caa4b11.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from go_opt.parallel import Case, Configuration

VARIABLE: Final = "CALCULON"
_NODE: Final = 8
_NO_LIMIT_GIB: Final = 10_000


def checkout() -> Path | None:
    """The folder of Calculon; None where there is none."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


@cache
def _system(limits_memory: bool) -> Any:
    folder = checkout()
    assert folder is not None, VARIABLE
    sys.path.insert(0, str(folder))
    from calculon.system import System

    data = json.loads((folder / "systems" / "a100_80g.json").read_text())
    data["networks"][0]["must_be_filled"] = False
    if not limits_memory:
        data["mem1"]["GiB"] = _NO_LIMIT_GIB
    return System(data)


def calculon_step(case: Case, chosen: Configuration, *, limits_memory: bool = False) -> Any | None:
    """Calculon's model of a step after its run; None if it finds the configuration impossible."""
    system = _system(limits_memory)
    from calculon.llm.llm import Llm

    model = case.model
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
        "batch_size": case.batch,
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


def calculon_s(case: Case, chosen: Configuration) -> float:
    """Seconds of a step by Calculon, without a limit of memory."""
    found = calculon_step(case, chosen)
    return float("inf") if found is None else float(found.get_total_time())

"""Experts of a mixture, each as ops of its own, under a routing that loads all the same.

GShard's dispatch and combine (Lepikhin et al. 2021): every expert takes as many tokens as it
gets when the routing is balanced, so that the shapes are known and the work is that of the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def balance_switch(network: Any) -> Any:
    """Switch Transformers under balanced routing."""
    from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersExperts

    for module in network.modules():
        if isinstance(module, SwitchTransformersExperts):
            module.forward = partial(_switch_experts, module)
    return network


def balance_granite(network: Any) -> Any:
    """Granite's mixtures under balanced routing."""
    from transformers.models.granitemoe.modeling_granitemoe import GraniteMoeExperts

    return _balance_gated(network, GraniteMoeExperts)


def balance_mixtral(network: Any) -> Any:
    """Mixtral's mixtures under balanced routing."""
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    return _balance_gated(network, MixtralExperts)


def _balance_gated(network: Any, kind: type) -> Any:
    """The weights of each expert on their own."""
    from torch.nn import ParameterList

    for module in network.modules():
        if isinstance(module, kind):
            experts: Any = module
            experts.gate_up = ParameterList(experts.gate_up_proj.unbind())
            experts.down = ParameterList(experts.down_proj.unbind())
            del experts.gate_up_proj, experts.down_proj
            experts.forward = partial(_gated_experts, experts)
    return network


def _gated_experts(experts: Any, hidden: Any, index: Any, weights: Any) -> Any:
    import torch
    from torch.nn.functional import linear

    def run(expert: int, part: Any) -> Any:
        gate, up = linear(part, experts.gate_up[expert]).chunk(2, dim=-1)
        return linear(experts.act_fn(gate) * up, experts.down[expert])

    shares = torch.zeros(len(hidden), experts.num_experts).scatter(1, index, weights)
    return _mixed(hidden, shares, index.shape[1], run)


def _switch_experts(experts: Any, hidden: Any, selected: Any, weights: Any) -> Any:
    def run(expert: int, part: Any) -> Any:
        return experts[f"expert_{expert}"](part)

    return _mixed(hidden, selected.squeeze(1) * weights, 1, run)


def _mixed(hidden: Any, shares: Any, chosen: int, run: Callable[[int, Any], Any]) -> Any:
    """The tokens through ``chosen`` experts each, added up by their ``shares`` (tokens, experts)."""
    import torch

    tokens, count = shares.shape
    capacity = -(-tokens * chosen // count)
    shares, rows = shares.T.topk(capacity)
    rows = rows.flatten()
    done = [run(expert, part) for expert, part in enumerate(hidden[rows].split(capacity))]
    return torch.zeros_like(hidden).index_add(0, rows, torch.cat(done) * shares.reshape(-1, 1))

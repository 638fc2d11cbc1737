"""The neural network of the policy. Importing this package imports JAX and Flax."""

from go_opt.agents.inputs.config import PolicyConfig
from go_opt.agents.networks.policy_network import (
    PolicyOutput,
    initial_parameters,
    policy_outputs,
)

__all__ = ["PolicyConfig", "PolicyOutput", "initial_parameters", "policy_outputs"]

"""The stand-in for hardware: a discrete-event simulator of the package (design section 5)."""

from go_opt.env.simulator.metrics import simulate_plan
from go_opt.env.simulator.simulate import SimulatedBatch, simulate_batch

__all__ = ["SimulatedBatch", "simulate_batch", "simulate_plan"]

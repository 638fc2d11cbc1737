"""A discrete-event simulator of the package, which stands in for hardware (design section 5)."""

from go_opt.env.simulator.metrics import simulate_plan
from go_opt.env.simulator.simulate import SimulatedBatch, simulate_batch

__all__ = ["SimulatedBatch", "simulate_batch", "simulate_plan"]

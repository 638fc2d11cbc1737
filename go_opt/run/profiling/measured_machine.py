"""This machine as an environment: evaluates a plan by running and measuring it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from go_opt import api
from go_opt.env import Target
from go_opt.errors import EnvironmentFailedError, GoOptError, PlanError
from go_opt.hardware import Measured
from go_opt.model.codecs.fields import bindings_to_dict
from go_opt.model.graph import Graph
from go_opt.model.plan import Plan
from go_opt.run.pipeline.results import chip_seconds
from go_opt.run.pipeline.running import run_plan
from go_opt.solver.verify.verifier import verify

INFERENCES: Final = 20  # per plan; the result is the median of their processor seconds


@dataclass(frozen=True)
class MeasuredMachine:
    """Plans of ``model`` as processes of ONNX Runtime: a :class:`go_opt.hardware.Hardware`.

    Args:
      model: the ONNX file, with all its weights.
      inferences: number of inferences per plan.
      seed: seed of the random inputs.
      links: whether to delay tensors by the target's link rates.
    """

    model: str | Path
    inferences: int = INFERENCES
    seed: int = 0
    links: bool = False

    def evaluate(self, graph: Graph, target: Target, plan: Plan) -> Measured | None:
        """Processor seconds per inference of the busiest chip and of each chip; None if it does not run.

        A plan does not run if it breaks a rule of the target, if ONNX Runtime refuses a stage, or if
        outputs differ from those of the whole model.

        Raises:
          EnvironmentFailedError: ``graph`` is not the graph of the model.
        """
        own = _loaded(str(self.model), json.dumps(bindings_to_dict(graph.bindings)), graph.precision)
        if own.op_names != graph.op_names:
            raise EnvironmentFailedError(f"graph {graph.name!r} has other ops than {str(self.model)!r}.")
        if verify(graph, target, plan):
            return None
        same = replace(
            plan, graph_fingerprint=own.fingerprint, bindings=own.bindings, precision=own.precision
        )
        try:
            ran = run_plan(
                self.model, same, inferences=self.inferences, seed=self.seed, links=self.links, target=target
            )
        except (EnvironmentFailedError, PlanError):
            return None
        except GoOptError as error:  # the model's, or a process that cannot start
            raise EnvironmentFailedError(str(error)) from error
        by_chip = chip_seconds(ran.stages)
        return Measured(
            ran.processor_interval_s, [by_chip.get(chip, 0.0) for chip in range(target.num_chips)]
        )


@lru_cache(maxsize=4)
def _loaded(model: str, bindings: str, precision: str) -> Graph:
    return api.load(model, **json.loads(bindings), precision="as-is" if precision == "as-is" else "native")

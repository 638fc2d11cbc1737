"""go-opt decides where each op of an ML graph runs, in which order, and which ops are fused.

The public functions are :func:`load`, :func:`inspect`, :func:`target`, :func:`optimize`,
:func:`evaluate`, :func:`verify`, :func:`fewest_chips`, :func:`chip_counts`, :func:`explain`,
:func:`timeline`, :func:`plan_page`, :func:`export`, :func:`export_torch`, :func:`run_plan`,
:func:`jax_step`, :func:`profile`, :func:`pretrain`, :func:`finetune` and :func:`serve_environment`;
constraints are :class:`Pin`, :class:`Forbid`, :class:`Colocate`, :class:`CutAfter`, :class:`ChipLimit`,
:class:`Stages`.
Importing this package is cheap; JAX and gRPC load on first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

# In a checkout the folders env/, solver/, agents/ and proto/ are next to this folder.
# In an installed package they are inside it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "env" / "evaluation.py").is_file() and (_checkout / "pyproject.toml").is_file():
    __path__.append(str(_checkout))

if TYPE_CHECKING:
    from go_opt.api import evaluate as evaluate
    from go_opt.api import explain as explain
    from go_opt.api import load as load
    from go_opt.api import optimize as optimize
    from go_opt.api import target as target
    from go_opt.api import timeline as timeline
    from go_opt.api import verify as verify
    from go_opt.api.chips import chip_counts as chip_counts
    from go_opt.api.chips import fewest_chips as fewest_chips
    from go_opt.costs.measured_costs import with_measured_costs as with_measured_costs
    from go_opt.env import Metrics as Metrics
    from go_opt.env import Target as Target
    from go_opt.env.model.timeline import Timeline as Timeline
    from go_opt.frontends.jax_frontend import from_jax as from_jax
    from go_opt.frontends.jax_frontend import from_stablehlo as from_stablehlo
    from go_opt.frontends.networkx_frontend import from_networkx as from_networkx
    from go_opt.frontends.networkx_frontend import to_networkx as to_networkx
    from go_opt.frontends.onnx_frontend import OnnxModel as OnnxModel
    from go_opt.frontends.onnx_frontend import from_onnx as from_onnx
    from go_opt.frontends.torch_frontend import from_torch as from_torch
    from go_opt.given_request import load_constraints as load_constraints
    from go_opt.hardware import Measured as Measured
    from go_opt.hardware import serve_environment as serve_environment
    from go_opt.model.graph import Graph as Graph
    from go_opt.model.plan import Plan as Plan
    from go_opt.model_summary import ModelSummary as ModelSummary
    from go_opt.model_summary import inspect as inspect
    from go_opt.parallel.execution.function_step import jax_step as jax_step
    from go_opt.report.page import plan_page as plan_page
    from go_opt.result import OptimizeResult as OptimizeResult
    from go_opt.result import Request as Request
    from go_opt.run.export.exporting import export as export
    from go_opt.run.export.torch_export import export_torch as export_torch
    from go_opt.run.pipeline.results import RunResult as RunResult
    from go_opt.run.pipeline.running import run_plan as run_plan
    from go_opt.run.profiling.profiling import Profile as Profile
    from go_opt.run.profiling.profiling import profile as profile
    from go_opt.service.client.client import Client as Client
    from go_opt.service.client.local_client import LocalClient as LocalClient
    from go_opt.service.client.operation import Operation as Operation
    from go_opt.service.environment.remote_environment import RemoteEnvironment as RemoteEnvironment
    from go_opt.service.transport.credentials import Credentials as Credentials
    from go_opt.service.transport.retry import Retry as Retry
    from go_opt.solver import ChipLimit as ChipLimit
    from go_opt.solver import Colocate as Colocate
    from go_opt.solver import CutAfter as CutAfter
    from go_opt.solver import Forbid as Forbid
    from go_opt.solver import Pin as Pin
    from go_opt.solver import Stages as Stages
    from go_opt.solver import Violation as Violation
    from go_opt.training import TrainingResult as TrainingResult
    from go_opt.training import finetune as finetune
    from go_opt.training import pretrain as pretrain
else:
    from go_opt.lazy_imports import lazy_imports

    __getattr__, __dir__, __all__ = lazy_imports(__name__)

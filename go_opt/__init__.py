"""go-opt: where each op of an ML graph runs, in which order, and which ops are fused.

The doors are :func:`load`, :func:`target`, :func:`optimize`, :func:`evaluate`, :func:`verify`,
:func:`fewest_chips`, :func:`chip_counts`, :func:`explain`, :func:`timeline`, :func:`plan_page`,
:func:`export`, :func:`export_torch`, :func:`run_plan`, :func:`profile`, :func:`pretrain`,
:func:`finetune` and :func:`serve_environment`; constraints are :class:`Pin`, :class:`Forbid`,
:class:`Colocate`, :class:`CutAfter`, :class:`ChipLimit`.
Importing this package is light; JAX and gRPC load on first use.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# In a checkout the rooms env/, solver/, agents/ and proto/ lie beside this folder;
# installed, they lie inside it.
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
    from go_opt.constraint_file import load_constraints as load_constraints
    from go_opt.env import Metrics as Metrics
    from go_opt.env import Target as Target
    from go_opt.env.model.timeline import Timeline as Timeline
    from go_opt.frontends import from_jax as from_jax
    from go_opt.frontends import from_networkx as from_networkx
    from go_opt.frontends import from_onnx as from_onnx
    from go_opt.frontends import from_stablehlo as from_stablehlo
    from go_opt.frontends import from_torch as from_torch
    from go_opt.frontends import to_networkx as to_networkx
    from go_opt.frontends.onnx_model import OnnxModel as OnnxModel
    from go_opt.hardware import Measured as Measured
    from go_opt.hardware import serve_environment as serve_environment
    from go_opt.measured_costs import with_measured_costs as with_measured_costs
    from go_opt.model.graph import Graph as Graph
    from go_opt.model.plan import Plan as Plan
    from go_opt.report.page import plan_page as plan_page
    from go_opt.result import OptimizeResult as OptimizeResult
    from go_opt.result import Request as Request
    from go_opt.run.export import export as export
    from go_opt.run.export import export_torch as export_torch
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
    from go_opt.solver import Violation as Violation
    from go_opt.training import TrainingResult as TrainingResult
    from go_opt.training import finetune as finetune
    from go_opt.training import pretrain as pretrain

_DOORS = {
    "ChipLimit": "go_opt.solver",
    "Client": "go_opt.service.client.client",
    "Colocate": "go_opt.solver",
    "Credentials": "go_opt.service.transport.credentials",
    "CutAfter": "go_opt.solver",
    "Forbid": "go_opt.solver",
    "Graph": "go_opt.model.graph",
    "LocalClient": "go_opt.service.client.local_client",
    "Measured": "go_opt.hardware",
    "Metrics": "go_opt.env",
    "Operation": "go_opt.service.client.operation",
    "OnnxModel": "go_opt.frontends.onnx_model",
    "OptimizeResult": "go_opt.result",
    "Pin": "go_opt.solver",
    "Plan": "go_opt.model.plan",
    "Profile": "go_opt.run.profiling.profiling",
    "Retry": "go_opt.service.transport.retry",
    "RemoteEnvironment": "go_opt.service.environment.remote_environment",
    "Request": "go_opt.result",
    "RunResult": "go_opt.run.pipeline.results",
    "Target": "go_opt.env",
    "Timeline": "go_opt.env.model.timeline",
    "TrainingResult": "go_opt.training",
    "Violation": "go_opt.solver",
    "chip_counts": "go_opt.api.chips",
    "evaluate": "go_opt.api",
    "explain": "go_opt.api",
    "export": "go_opt.run.export",
    "export_torch": "go_opt.run.export",
    "fewest_chips": "go_opt.api.chips",
    "finetune": "go_opt.training",
    "from_jax": "go_opt.frontends",
    "from_networkx": "go_opt.frontends",
    "from_onnx": "go_opt.frontends",
    "from_stablehlo": "go_opt.frontends",
    "from_torch": "go_opt.frontends",
    "load": "go_opt.api",
    "load_constraints": "go_opt.constraint_file",
    "optimize": "go_opt.api",
    "plan_page": "go_opt.report.page",
    "pretrain": "go_opt.training",
    "profile": "go_opt.run.profiling.profiling",
    "run_plan": "go_opt.run.pipeline.running",
    "serve_environment": "go_opt.hardware",
    "target": "go_opt.api",
    "timeline": "go_opt.api",
    "to_networkx": "go_opt.frontends",
    "verify": "go_opt.api",
    "with_measured_costs": "go_opt.measured_costs",
}

__all__ = sorted(_DOORS)


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'go_opt' has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_DOORS]

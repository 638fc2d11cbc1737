"""Explanations as the JSON objects that ``explain --json`` prints: field names of the Python ones."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from go_opt.env import Metrics
from go_opt.explanations import OpExplanation, PlanExplanation
from go_opt.result_json import finite, metrics_to_dict


def explanation_to_dict(told: PlanExplanation | OpExplanation) -> dict[str, Any]:
    """The answer to ``explain``; what is infinite is null."""
    return {field.name: _json(getattr(told, field.name)) for field in fields(told)}


def _json(value: Any) -> Any:
    if isinstance(value, Metrics):
        return metrics_to_dict(value)
    if is_dataclass(value):
        return {field.name: _json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [_json(item) for item in value]
    return finite(value) if isinstance(value, float) else value

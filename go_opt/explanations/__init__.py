"""Explains the cost of a plan and the placement of an op."""

from go_opt.explanations.of_op import OpExplanation, explain_op
from go_opt.explanations.whole import PlanExplanation, explain_plan

__all__ = ["OpExplanation", "PlanExplanation", "explain_op", "explain_plan"]

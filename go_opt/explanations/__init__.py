"""Explains the cost of a plan and the placement of an op."""

from go_opt.explanations.explaining import OpExplanation, PlanExplanation, explain_op, explain_plan

__all__ = ["OpExplanation", "PlanExplanation", "explain_op", "explain_plan"]

"""A plan as one self-contained HTML page."""

from go_opt.report.page.facts import Claims, claims_of
from go_opt.report.page.page import node_data_text, page_of, plan_page, step_page, subject_of

__all__ = ["Claims", "claims_of", "node_data_text", "page_of", "plan_page", "step_page", "subject_of"]

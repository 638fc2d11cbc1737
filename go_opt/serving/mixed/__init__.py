"""Layers of one model over nodes of several kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from go_opt.serving.mixed.cluster import Case as Case
    from go_opt.serving.mixed.cluster import Cluster as Cluster
    from go_opt.serving.mixed.cluster import NodeKind as NodeKind
    from go_opt.serving.mixed.search import RangePlan as RangePlan
    from go_opt.serving.mixed.search import plan_ranges as plan_ranges
else:
    from go_opt.lazy_imports import lazy_imports

    __getattr__, __dir__, __all__ = lazy_imports(__name__)

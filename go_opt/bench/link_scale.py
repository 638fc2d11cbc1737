"""A target with links faster or slower than its file says."""

from __future__ import annotations

import math
from dataclasses import replace

from go_opt.env import Target, parse_target
from go_opt.env.target.toml import target_to_toml
from go_opt.errors import InvalidInputError


def with_links_scaled(target: Target, scale: float) -> Target:
    """``target`` with every link between chips ``scale`` times as fast; the host's stay."""
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInputError(f"link_scale must be above zero, not {scale}.", field="link_scale")
    if scale == 1:
        return target
    topology = replace(target.topology, rate_bytes_per_s=target.topology.rate_bytes_per_s * scale)
    name = f"{target.name}, links x{scale:g}"
    return parse_target(
        target_to_toml(replace(target, name=name, topology=topology)), f"{target.source}, links x{scale:g}"
    )

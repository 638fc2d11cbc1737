"""Levels of a cluster: the networks of its nodes and among them, for training steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from go_opt.env.target.fields import COUNT, NON_NEGATIVE, POSITIVE, TEXT, fields_of, rows, table
from go_opt.errors import TargetError

# Clusters that ship in any size, and the target that is like one of their nodes.
CLUSTERS: Final = {"dgx-a100": "gpu-8", "dgx-h100": "h100-sxm-8", "ethernet-a100": "gpu-8"}
MAX_DEVICES: Final = 99_999
_NODE: Final = 8
_NAME: Final = re.compile(rf"({'|'.join(CLUSTERS)})-([1-9][0-9]{{0,4}})")


@dataclass(frozen=True)
class Level:
    """Devices that one network joins: those of a node, or of all nodes."""

    name: Annotated[str, TEXT("The level's name, such as node or cluster.")]
    size: Annotated[int, COUNT("Devices in it.")]
    rate_bytes_per_s: Annotated[
        float, POSITIVE("Bytes per second that a device sends, above the first level a node.")
    ]
    latency_s: Annotated[float, NON_NEGATIVE("Latency of a message in seconds.")]
    host_s_per_layer: Annotated[
        float,
        NON_NEGATIVE(
            "Least seconds in which the host launches a layer, forwards and backwards (default: 0).",
            is_optional=True,
        ),
    ] = 0.0


def check_levels(levels: tuple[Level, ...], num_chips: int) -> None:
    """Raise unless there are no levels, or those of a node of ``num_chips`` and of a cluster."""
    if not levels:
        return
    if len(levels) > 2:
        raise TargetError(f"levels: {len(levels)} are given, must be 1 or 2.", field="levels")
    if levels[0].size != num_chips:
        raise TargetError(
            f"levels[0].size must be the number of chips, {num_chips}, not {levels[0].size}.",
            field="levels[0].size",
        )
    if not num_chips <= levels[-1].size <= MAX_DEVICES:
        raise TargetError(
            f"levels[1].size must be {num_chips} to {MAX_DEVICES} devices, not {levels[-1].size}.",
            field="levels[1].size",
        )


def cluster_text(name: str, text_of: Callable[[str], str]) -> str | None:
    """The TOML text of a cluster of this name, such as ``dgx-a100-512``; None if it is none.

    Args:
      text_of: the text of a file that ships.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    family, devices = match[1], int(match[2])
    chips = min(devices, _NODE)
    text = text_of(f"{CLUSTERS[family]}.toml")
    power_w = re.search(r"(?m)^power_w = ([0-9]+)", text)
    assert power_w is not None, family
    for field, value in {
        "name": f'"{name}"',
        "description": f'"{devices} GPUs in nodes like {CLUSTERS[family]}, for training steps"',
        "power_w": str(int(power_w[1]) * chips // _NODE),
        "count": str(chips),
    }.items():
        text, found = re.subn(rf"(?m)^{field} = (\"[^\"]*\"|[0-9]+)", f"{field} = {value}", text, count=1)
        assert found == 1, (family, field)
    levels = text_of(f"{family}.levels").replace("NODE", str(chips)).replace("CLUSTER", str(devices))
    return f"{text}\n{levels}"


LEVELS: Final = rows(table(fields_of(Level), Level)("A level."))

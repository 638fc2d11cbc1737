"""The stages of a page: the load of each, and its transfers to other stages."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from go_opt.report.page.subject import NO_STAGE, Stage, Subject
from go_opt.report.parts.wording import binds

HOST: Final = "host"


def pipeline_rows(subject: Subject) -> list[dict[str, Any]]:
    """One object per stage, in pipeline order. Loads are shares of the interval or makespan."""
    sends = _sends(subject)
    return [_row(subject, stage, sends.get(i, [])) for i, stage in enumerate(subject.stages)]


def passing_rows(subject: Subject) -> list[dict[str, Any]]:
    """The transfers from chips that run no op."""
    return _sends(subject).get(NO_STAGE, [])


def host_rows(subject: Subject) -> list[dict[str, Any]]:
    """The host's link, in and out."""
    metrics = subject.metrics
    pairs = zip(subject.target.link_names[-2:], metrics.link_s[-2:].tolist(), strict=True)
    return [
        {
            "name": name,
            "seconds": seconds,
            "load": subject.share(seconds),
            "binds": subject.explanation.objective == "throughput" and metrics.bottleneck == name,
        }
        for name, seconds in pairs
    ]


def _row(subject: Subject, stage: Stage, sends: list[dict[str, Any]]) -> dict[str, Any]:
    use, explanation = stage.use, subject.explanation
    busy_s = explanation.busy_s(use)
    last = stage.first_chip + stage.chips - 1
    return {
        "name": stage.name,
        "chips": stage.chips,
        "first": stage.first_chip,
        "colour": stage.colour,
        "ops": use.ops,
        "kernels": use.kernels,
        "busy_s": busy_s,
        "load": subject.share(busy_s),
        "binds": explanation.objective == "throughput"
        and binds(explanation.metrics.bottleneck, stage.first_chip, last),
        "weight_bytes": use.weight_bytes,
        "peak_bytes": use.peak_bytes,
        "stream_bytes": use.stream_bytes,
        "sram_bytes": use.sram_bytes,
        "dearest": use.dearest.ops[0],
        "sends": sends,
    }


def _sends(subject: Subject) -> dict[int, list[dict[str, Any]]]:
    """By sending stage: the busiest link to each other stage, or to chips that only forward."""
    topology, link_s = subject.target.topology, subject.metrics.link_s
    busiest: dict[tuple[int, int | str], int] = {}
    links: dict[tuple[int, int | str], int] = {}
    for link in np.flatnonzero(link_s[: topology.num_links]).tolist():
        ends = _end(subject, int(topology.link_from[link])), _end(subject, int(topology.link_to[link]))
        if ends[0] == HOST or (ends[0] == ends[1] and ends[0] != NO_STAGE):
            continue  # a link inside a stage, whose chips forward each other's results
        pair = int(ends[0]), ends[1]
        links[pair] = links.get(pair, 0) + 1
        if link_s[link] > link_s[busiest.setdefault(pair, link)]:
            busiest[pair] = link
    rows: dict[int, list[dict[str, Any]]] = {}
    for pair, link in busiest.items():
        rows.setdefault(pair[0], []).append(_send(subject, pair[1], link) | {"links": links[pair]})
    return {stage: sorted(sent, key=lambda row: -row["seconds"]) for stage, sent in rows.items()}


def _end(subject: Subject, chip: int) -> int | str:
    return HOST if chip < 0 else int(subject.stage_of_chip[chip])


def _send(subject: Subject, to: int | str, link: int) -> dict[str, Any]:
    term = subject.terms.term(subject.target.num_chips + link)
    seconds = float(subject.metrics.link_s[link])
    return {
        "to": None if to in (HOST, NO_STAGE) else to,
        "name": _name(subject, to, link),
        "link": term.name,
        "seconds": seconds,
        "load": subject.share(seconds),
        "bytes": term.size_bytes,
        "tensors": len(term.tensors),
        "binds": subject.explanation.objective == "throughput" and subject.metrics.bottleneck == term.name,
    }


def _name(subject: Subject, to: int | str, link: int) -> str:
    if to == HOST:
        return "the host"
    if to == NO_STAGE:
        return f"chip {subject.target.topology.link_to[link]}, which runs no op"
    return subject.stages[int(to)].name

"""The measurements of a run of a plan, as text and as JSON types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table

from go_opt.common.units import format_bytes, format_duration
from go_opt.frontends.union.graphs import UNION_PREFIX, shares_of
from go_opt.report.parts.wording import counted, stage_cell, table_of
from go_opt.run.pipeline.results import RunResult, chip_seconds


def run_lines(result: RunResult) -> Iterator[str]:
    """The run as a whole."""
    stages, cores = counted(len(result.stages), "stage"), counted(result.cores, "core")
    processes = f"{result.workers} process{'es' * (result.workers != 1)}"
    number = counted(result.sequences, "sequence")
    in_flight = f" of {number} in flight" if result.sequences else ""
    yield (
        f"{result.model}, planned for {result.target}: {stages} in {processes} on {cores}, "
        f"{result.inferences} inferences{in_flight}"
    )
    busiest, predicted = (
        format_duration(seconds) for seconds in (result.processor_interval_s, result.predicted_interval_s)
    )
    is_waiting = result.processor_interval_s > max(chip_seconds(result.stages).values())
    where = f"all stages one after the other, by {number}" if is_waiting else "the busiest chip"
    yield f"interval    {busiest} of processor time on {where}, predicted {predicted}"
    if result.model.startswith(UNION_PREFIX):
        for copies, model in shares_of(result.model):
            each = format_duration(result.processor_interval_s / copies)
            yield f"model       {each} of processor time per inference of {model}"
    shared = ", more processes than cores" if result.workers > result.cores else ""
    yield (
        f"by clock    {format_duration(result.wall_interval_s)} "
        f"({result.throughput_per_s:.6g} inferences/s){shared}"
    )
    yield (
        f"latency     {format_duration(result.latency_s)} alone, "
        f"predicted {format_duration(result.predicted_latency_s)}"
    )
    fullest = max(result.memory, key=lambda chip: chip.measured_bytes)
    yield (
        f"memory      {format_bytes(fullest.measured_bytes)} on the fullest chip, "
        f"predicted {format_bytes(fullest.predicted_bytes)}"
    )
    are = "equal to" if result.is_equal else "DIFFERENT from"
    whole = "each model alone" if result.model.startswith(UNION_PREFIX) else "the whole model"
    yield f"outputs     {are} those of {whole}, up to {result.difference:.1e} of their scale"


def stages_table(result: RunResult) -> Table:
    """One row per stage; seconds are of one inference, divided by the replication."""
    rows = (
        (
            stage.stage,
            stage_cell(stage.chips[0], stage.replication),
            stage.num_ops,
            *(
                format_duration(seconds / stage.replication)
                for seconds in (stage.predicted_s, stage.processor_s, stage.wall_s)
            ),
        )
        for stage in result.stages
    )
    return table_of(("stage", "chips", "ops", "predicted", "processor time", "by clock"), rows)


def run_to_dict(result: RunResult) -> dict[str, Any]:
    """The run as JSON types, without the outputs."""
    values = asdict(replace(result, outputs={}))
    del values["outputs"]
    return {**values, "throughput_per_s": result.throughput_per_s}

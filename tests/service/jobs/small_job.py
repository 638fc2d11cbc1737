"""A job's process that trains for real, but a small network, and writes a checkpoint after every step."""

from __future__ import annotations

from functools import partial
from typing import Final

from go_opt.agents.networks import PolicyConfig

CONFIG: Final = PolicyConfig(
    width=16, graphsage_layers=1, attention_layers=1, num_heads=2, segment_ops=16, rounds=1
)

if __name__ == "__main__":
    from go_opt import training
    from go_opt.agents.training import run
    from go_opt.service.jobs.job_process import main
    from go_opt.service.jobs.train import train_job

    run.CHECKPOINT_EVERY_S = 0.0  # type: ignore[misc]
    training.pretrain = partial(training.pretrain, network=CONFIG, validation=[], graphs_per_step=1)
    main(train_job, niceness=0)

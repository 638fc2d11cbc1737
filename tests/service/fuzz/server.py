"""The services of ``go-opt serve`` in a process of their own: ``python -m tests.service.fuzz.server DATA``.

Only training is left out: its jobs run :mod:`tests.service.jobs.fake_job`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from go_opt.service.assembly import Assembly
from go_opt.service.jobs.job_process import LocalRunner
from go_opt.service.server import serve

_FAKE_JOB = Path(__file__).parents[1] / "jobs" / "fake_job.py"
_WORKERS = 1


@dataclass(frozen=True)
class _FuzzedAssembly(Assembly):
    def job_runner(self) -> LocalRunner:
        return LocalRunner((sys.executable, "-P", str(_FAKE_JOB)))


if __name__ == "__main__":
    assembly = _FuzzedAssembly(workers=_WORKERS, data_dir=Path(sys.argv[1]))
    serve("127.0.0.1:0", assembly.services, workers=assembly.slots)

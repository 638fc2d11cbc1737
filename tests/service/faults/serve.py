"""``go-opt`` with another program for its jobs, and no long waits: ``serve.py PROGRAM ARGUMENTS``.

With ``GO_OPT_TEST_NO_WORKERS`` searches run in the service's own process.
"""

from __future__ import annotations

import os
import sys
from functools import partial

if __name__ == "__main__":
    from go_opt.cli.app import main
    from go_opt.service import assembly
    from go_opt.service.jobs import manager
    from go_opt.service.jobs.job_process import LocalRunner
    from go_opt.service.workers.optimizer import LocalOptimizer

    command = (sys.executable, "-P", sys.argv.pop(1))
    assembly.LocalRunner = partial(LocalRunner, command)  # type: ignore[assignment, misc]
    if "GO_OPT_TEST_NO_WORKERS" in os.environ:
        assembly.ProcessOptimizer = lambda workers: LocalOptimizer()  # type: ignore[assignment, misc]
    manager._RETRY_RANGE_S, manager._STORE_AGAIN_S = (0.1, 0.1), 0.1  # type: ignore[misc]
    manager._FULL_DISK_RETRY_S = 0.1  # type: ignore[misc]
    main()

"""A small job that trains for real; with ``GO_OPT_TEST_TEARS`` its third checkpoint never gets whole."""

from __future__ import annotations

import os
import runpy
import threading
from pathlib import Path
from typing import IO, Any

SMALL_JOB = Path(__file__).parents[1] / "jobs/small_job.py"
TORN = "torn"  # a file that is there once half of that checkpoint is written
_WHOLE = 2  # checkpoints before
_fdopen = os.fdopen
_written = 0


def fdopen(handle: int, *args: Any) -> IO[Any]:
    global _written
    path = Path(os.readlink(f"/proc/self/fd/{handle}"))
    if path.name.startswith(".checkpoint."):
        _written += 1
        if _written > _WHOLE:
            return _Torn(_fdopen(handle, *args), path.parent)  # type: ignore[return-value]
    return _fdopen(handle, *args)


class _Torn:
    def __init__(self, file: IO[bytes], folder: Path) -> None:
        self._file, self._folder = file, folder

    def __enter__(self) -> _Torn:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        (self._folder / TORN).touch()
        threading.Event().wait()


if __name__ == "__main__":
    if "GO_OPT_TEST_TEARS" in os.environ:
        os.fdopen = fdopen  # type: ignore[assignment]
    runpy.run_path(str(SMALL_JOB), run_name="__main__")

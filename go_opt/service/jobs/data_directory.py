"""The directory in which one service stores its jobs, with a folder for each job."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from go_opt.common.files import make_folder
from go_opt.errors import InvalidInputError, ServiceError
from go_opt.service.jobs.store import FILE_NAME, JobStore

_DELETED: Final = ".deleted"
_OUT_OF_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class DataDirectory:
    """Has ``jobs.sqlite3``, which is opened as ``store``, and the jobs' folders.

    Raises:
      InvalidInputError: another service uses it, it cannot be written to, or its store is
        damaged, lost or of another version.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._folders = self._path / "jobs"
        make_folder(self._folders)
        self._lock_file = lock(self._path / "lock")
        if self._lock_file is None:
            raise InvalidInputError(
                f"data directory {str(path)!r} is in use by another service.", field="data"
            )
        try:
            self.store = self._open_store()
            self._finish_deletions()
        except BaseException:
            self._lock_file.close()
            raise

    def folder(self, job_id: str) -> Path:
        """The folder of a job's files."""
        return self._folders / job_id

    @contextmanager
    def removing(self, job_id: str) -> Iterator[None]:
        """Remove a job's folder, unless the block raises."""
        folder, moved = self.folder(job_id), self.folder(job_id + _DELETED)
        has_folder = folder.exists()
        if has_folder:
            folder.rename(moved)
        try:
            yield
        except BaseException:
            if has_folder:
                moved.rename(folder)
            raise
        shutil.rmtree(moved, ignore_errors=True)  # the next start of the service removes any rest

    def close(self) -> None:
        """Release the directory for other services."""
        self.store.close()
        if self._lock_file is not None:
            self._lock_file.close()

    def _open_store(self) -> JobStore:
        path = self._path / FILE_NAME
        if any(self._folders.iterdir()) and not (path.exists() and path.stat().st_size):
            raise InvalidInputError(
                f"job store {str(path)!r} is lost, but not the jobs' folders; put it back, or give "
                "another data directory.",
                field="data",
            )
        return JobStore(path)

    def _finish_deletions(self) -> None:
        """Finish interrupted deletions: restore the folders of stored jobs, and remove the others."""
        known = self.store.ids()
        for moved in self._folders.glob(f"*{_DELETED}"):
            job_id = moved.name.removesuffix(_DELETED)
            if job_id in known:
                moved.rename(self.folder(job_id))
            else:
                shutil.rmtree(moved, ignore_errors=True)


def lock(path: Path) -> BinaryIO | None:
    """Locks a file until it is closed or this process ends; None if another process has the lock."""
    try:
        file = path.open("ab")
    except OSError as cause:
        raise InvalidInputError(
            f"{str(path)!r} cannot be written to: {cause.strerror or cause}.", field="data"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk, if the folder exists; ServiceError if that fails."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return
    except OSError as cause:
        raise ServiceError(f"the service cannot store a job's files: {cause.strerror or cause}.") from cause


def is_out_of_space(error: BaseException) -> bool:
    """Whether a full disk or quota caused an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _OUT_OF_SPACE:
            return True
        cause = cause.__cause__ or cause.__context__
    return False

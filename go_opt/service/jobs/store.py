"""Stores jobs durably: an embedded SQLite database, and a folder of files for each job."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, Final

from go_opt.common.files import make_folder
from go_opt.errors import AlreadyExistsError, InvalidInputError, ServiceError
from go_opt.service.jobs.job import QUEUED, Job, NewJob, no_such_job

FILE_NAME: Final = "jobs.sqlite3"
VERSION: Final = 2
_MOST_LOG_BYTES: Final = 64 * 2**20  # to which a larger write-ahead log is truncated
# Names are unique per owner, so that they reveal nothing about other owners' jobs.
_SCHEMA: Final = """
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  kind INTEGER NOT NULL,
  policy TEXT NOT NULL,
  request_id TEXT,
  request BLOB NOT NULL,
  start_policy BLOB,
  state INTEGER NOT NULL,
  created_ns INTEGER NOT NULL,
  started_ns INTEGER,
  ended_ns INTEGER,
  attempts INTEGER NOT NULL DEFAULT 0,
  vain_starts INTEGER NOT NULL DEFAULT 0,
  progress BLOB NOT NULL DEFAULT x'',
  result BLOB,
  error BLOB,
  owner TEXT NOT NULL,
  is_shared INTEGER NOT NULL,
  digest BLOB NOT NULL,
  UNIQUE (owner, policy),
  UNIQUE (owner, request_id)
);
CREATE INDEX jobs_by_state ON jobs (state, number);
"""
_COLUMN_OF: Final = {"failed_attempts": "vain_starts"}  # where a field has another name
_COLUMNS: Final = [_COLUMN_OF.get(field.name, field.name) for field in fields(Job)]
# The columns in a row's digest: SQLite detects damaged pages, but not damaged values.
_DIGESTED: Final = [*_COLUMNS[1:], "request_id", "request", "start_policy"]
_DELETED: Final = ".deleted"
_OUT_OF_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class JobStore:
    """The jobs of one service; thread-safe.

    Args:
      path: the database file, which is created if it does not exist.

    Raises:
      InvalidInputError: the file is damaged, not a job store, or of another version; the file
        is left unchanged.
    """

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        with _one_sentence(Path(path)):
            if Path(path).exists():
                _check(Path(path))
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.create_function("digest", -1, _digest)
            for setting in (
                "journal_mode = WAL",
                "synchronous = FULL",
                f"journal_size_limit = {_MOST_LOG_BYTES}",
            ):
                self._connection.execute(f"PRAGMA {setting}")
            if not _version(self._connection):
                self._connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")

    def create(self, new: NewJob) -> Job:
        """Store a queued job; durable once this returns.

        Raises:
          AlreadyExistsError: another job has this policy name or request id.
        """
        values: dict[str, Any] = {
            **vars(new),
            "id": secrets.token_hex(8),
            "request_id": new.request_id or None,
            "state": QUEUED,
            "created_ns": time.time_ns(),
            "attempts": 0,
            "vain_starts": 0,
            "progress": b"",
        }
        content = ", ".join(f":{name}" if name in values else "NULL" for name in _DIGESTED)
        try:
            self._execute(
                f"INSERT INTO jobs ({', '.join(values)}, digest) "
                f"VALUES ({', '.join(f':{name}' for name in values)}, digest({content}))",
                values,
            )
        except sqlite3.IntegrityError as error:
            if "jobs.request_id" in str(error):
                raise AlreadyExistsError(
                    f"request_id {new.request_id[:100]!r} is that of another request.", field="request_id"
                ) from None
            raise AlreadyExistsError(
                f"policy {new.policy!r} is that of another job.", field="policy"
            ) from None
        return self.job(values["id"])

    def find(self, owner: str = "", *, policy: str = "", request_id: str = "") -> Job | None:
        """The owner's job with this policy or this request id."""
        jobs = self._jobs("owner = ? AND (policy = ? OR request_id = ?)", (owner, policy, request_id or None))
        return jobs[0] if jobs else None

    def job(self, job_id: str) -> Job:
        """The job; NotFoundError if it does not exist."""
        jobs = self._jobs("id = ?", (job_id,))
        if not jobs:
            raise no_such_job(job_id)
        return jobs[0]

    def request(self, job_id: str) -> NewJob:
        rows = self._execute(
            "SELECT kind, policy, coalesce(request_id, ''), request, start_policy, owner, is_shared "
            "FROM jobs WHERE id = ?",
            (job_id,),
        )
        if not rows:
            raise no_such_job(job_id)
        return NewJob(*rows[0])

    def in_states(self, states: Iterable[int]) -> list[Job]:
        """Jobs in these states, oldest first."""
        wanted = tuple(states)
        return self._jobs(f"state IN ({', '.join('?' * len(wanted))}) ORDER BY number", wanted)

    def page(self, before: int | None, size: int, owner: str = "") -> list[Job]:
        """As :meth:`JobManager.page`."""
        return self._jobs(
            "(owner = ?1 OR is_shared) AND (?2 IS NULL OR number < ?2) ORDER BY number DESC LIMIT ?3",
            (owner, before, size),
        )

    def ids(self) -> set[str]:
        return {job_id for (job_id,) in self._execute("SELECT id FROM jobs", ())}

    def update(self, job_id: str, **values: Any) -> None:
        """Set columns of a job; durable once this returns."""
        values = {_COLUMN_OF.get(name, name): value for name, value in values.items()}
        columns = ", ".join(f"{name} = :{name}" for name in values)
        content = ", ".join(f":{name}" if name in values else name for name in _DIGESTED)
        self._execute(
            f"UPDATE jobs SET {columns}, digest = digest({content}) WHERE id = :id", {**values, "id": job_id}
        )

    def delete(self, job_id: str) -> None:
        self._execute("DELETE FROM jobs WHERE id = ?", (job_id,))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _jobs(self, where: str, values: Sequence[Any]) -> list[Job]:
        return [
            Job(*row)
            for row in self._execute(f"SELECT {', '.join(_COLUMNS)} FROM jobs WHERE {where}", values)
        ]

    def _execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise ServiceError(f"the service cannot store or read its jobs: {error}.") from error


def _check(path: Path) -> None:
    """Check a database without writing to it; raise if it cannot be used."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        version = _version(connection)
        (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if answer != "ok":
            raise sqlite3.DatabaseError(f"it is damaged ({' '.join(answer.split())})")
        if version not in (0, VERSION):
            raise InvalidInputError(
                f"job store {str(path)!r} is of version {version}, this go-opt reads version {VERSION}.",
                field="data",
            )
        if not version and tables:
            raise sqlite3.DatabaseError("it is another program's database")
        connection.create_function("digest", -1, _digest)
        damaged = f"SELECT id FROM jobs WHERE digest IS NOT digest({', '.join(_DIGESTED)})"
        row = connection.execute(damaged).fetchone() if version else None
        if row is not None:
            raise sqlite3.DatabaseError(f"it is damaged (job {row[0]})")


def _digest(*values: str | bytes | int | float | None) -> bytes:
    """Digest of SQL values, each with its type and length."""
    hashed = hashlib.blake2b(digest_size=16)
    for value in values:
        data = value if isinstance(value, bytes) else str(value).encode()
        hashed.update(f"{type(value).__name__} {len(data)} ".encode())
        hashed.update(data)
    return hashed.digest()


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    assert isinstance(version, int)
    return version


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as cause:
        if isinstance(cause, InvalidInputError):
            raise
        raise InvalidInputError(
            f"job store {str(path)!r} cannot be used: {cause}; it was left as it is.", field="data"
        ) from None


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

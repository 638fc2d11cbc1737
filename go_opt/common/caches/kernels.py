"""Compiled functions on disk, found by the sources that they were compiled from.

Numba itself finds them by the path of a file, and compiles again where that file has changed. But a compiled
function holds those that it calls and constants from other files. Here the key is the contents of its file
and of all files that this one imports, directly or not: when any of them changes it is compiled again, and
copies of equal sources share it, wherever they lie.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import numba
from numba.core import caching, event

from go_opt.common.caches.folder import cache_folder

_BEGAN_S: Final = time.time()
LOADS: Final = "go-opt:load"  # the event of a compiled function that loads, as numba's of one that compiles
_KEPT: Final = 4  # versions of a file whose compiled functions stay
_NOWHERE: Final = Path(os.devnull)
_IMPORT: Final = re.compile(rb"^[ \t]*(?:from|import) ([\w.]+)(?: import (\([^)]*\)|[^\n]*))?", re.MULTILINE)
_NAME: Final = re.compile(rb"\w+")
_numba: Final[Any] = caching  # numba has no annotations


@cache
def sources_digest(module: str) -> str:
    """A digest of a module, of what it imports from its own package or go_opt, and of numba and Python."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for name in sorted(sources(module)):
        digest.update(name.encode() + _source(name)[0])
    return digest.hexdigest()[:16]


@cache
def sources(module: str) -> frozenset[str]:
    """The module and those that it imports, directly or not; also within functions and for types."""
    found, to_read = {module}, [module]
    while to_read:
        new = _source(to_read.pop())[1] - found
        found |= new
        to_read += new
    return frozenset(found)


@cache
def _source(module: str) -> tuple[bytes, frozenset[str]]:
    """The digest of a module's file, and the modules that it names in imports."""
    path = _path(module)
    text = path.read_bytes() if path else b""
    packages = {"go_opt", module.partition(".")[0]}
    named = set()
    for imported, names in _IMPORT.findall(text):
        home = imported.decode()
        if home.partition(".")[0] in packages and (file := _path(home)):
            named.add(home)
            if file.name == "__init__.py":
                named |= {f"{home}.{name.decode()}" for name in _NAME.findall(names)}
    if not _is_known(module):
        text += f"{os.getpid()} {_BEGAN_S}".encode()  # of no other process
    return hashlib.sha256(text).digest(), frozenset(filter(_path, named))


@cache
def _is_known(module: str) -> bool:
    """Whether its file is what runs: not where it has changed since this process began."""
    path = _path(module)
    return path is not None and not _BEGAN_S < path.stat().st_mtime <= time.time()


@cache
def _path(module: str) -> Path | None:
    """The file of a module, which need not be loaded."""
    package, *parts = module.split(".")
    loaded: Any = sys.modules.get(package)
    if not parts and hasattr(loaded, "__file__"):
        return Path(loaded.__file__)
    for folder in getattr(loaded, "__path__", ()):
        base = os.path.join(folder, *parts)
        for path in (f"{base}.py", os.path.join(base, "__init__.py")):
            if os.path.isfile(path):
                return Path(path)
    return None


def _folders() -> Iterator[Path | None]:
    """Where compiled functions may be kept: the first that can be written is taken."""
    given = cast("Any", numba.config).CACHE_DIR  # NUMBA_CACHE_DIR
    yield Path(given) / "go-opt" if given else None
    yield cache_folder("kernels")
    yield Path(__file__).parent / "__pycache__"


@cache
def _folder() -> Path:
    for folder in _folders():
        with suppress(OSError, ValueError):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                if os.access(folder, os.W_OK):
                    return folder
    return _NOWHERE


@cache
def folder_of(module: str) -> Path:
    """Where the compiled functions of a module are kept; those of its older versions go."""
    if not all(map(_is_known, sources(module))):
        return _NOWHERE
    folder = _folder() / f"{module}-{sources_digest(module)}"
    with suppress(OSError):
        if folder.is_dir():
            os.utime(folder)
        else:
            folder.mkdir()
            for old in _by_use(module)[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
    return folder


def _by_use(module: str) -> list[Path]:
    """The folders of all versions of a module, that of the longest ago first."""
    versions = [path for path in _folder().iterdir() if path.name.rpartition("-")[0] == module]
    return sorted(versions, key=lambda path: path.stat().st_mtime)


class _Locator(_numba._CacheLocator):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._folder, self._py_file = folder_of(function.__module__), file
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func, py_file)


class _Impl(_numba.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: Final = [_Locator]


class KernelCache(_numba.FunctionCache):  # type: ignore[misc]
    """The files of one function; they are looked for when it is first called.

    Where they can be neither read nor written, the function compiles in each process.
    """

    _impl_class: Final = _Impl

    def __init__(self, function: Callable[..., Any]) -> None:
        self._py_func = function

    @property
    def cache_path(self) -> str:
        self._find()
        return str(self._cache_path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with suppress(OSError), event.trigger_event(LOADS):
            self._find()
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        self._find()
        with suppress(OSError):
            super().save_overload(sig, data)

    def _find(self) -> None:
        if "_impl" not in vars(self):
            super().__init__(self._py_func)

"""Type-check the package as it is installed: one import name, go_opt.

The rooms lie beside go_opt/ in the checkout, and over that bare mapping a type checker
reports success on a single file. So the check runs over a tree of links laid out as
installed, and fails unless it covered every file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("env", "solver", "agents", "proto")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "go_opt"
        package.mkdir()
        for source in [*(ROOT / "go_opt").iterdir(), *(ROOT / room for room in ROOMS)]:
            if source.name != "__pycache__":
                (package / source.name).symlink_to(source)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "go_opt"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    print(done.stdout, done.stderr, sep="", end="")
    checked = re.search(r"\(?(?:checked|in) (\d+) source files", done.stdout)
    files = {path for room in ("go_opt", *ROOMS) for path in (ROOT / room).rglob("*.py")}
    # mypy counts folders without an __init__.py as well.
    folders = {folder for room in ("go_opt", *ROOMS) for folder in (ROOT / room, *(ROOT / room).rglob("*/"))}
    plain = {folder for folder in folders if folder.is_dir() and folder.name != "__pycache__"}
    wanted = len(files) + sum(folder / "__init__.py" not in files for folder in plain)
    if done.returncode == 0 and (checked is None or int(checked[1]) != wanted):
        sys.exit(f"mypy covered {checked and checked[1]} of {wanted} files.")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()

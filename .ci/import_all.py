"""Import every module of the installed package; run from outside the checkout."""

from __future__ import annotations

import importlib
from pathlib import Path

import go_opt

# Regenerating stubs needs the `test` extra, the Gymnasium environment `gymnasium`, stage models `run`.
NEED_EXTRAS = (
    "go_opt.proto.generate",
    "go_opt.gymnasium_environment",
    "go_opt.run.cut.",
    "go_opt.run.profiling.",
)

# pkgutil does not look into folders without an __init__.py, so the files are listed.
installed = Path(str(go_opt.__file__)).parent
files = [path.relative_to(installed.parent).with_suffix("") for path in sorted(installed.rglob("*.py"))]
names = [".".join(path.parts).removesuffix(".__init__") for path in files]
names = [name for name in names if not name.startswith(NEED_EXTRAS) and not name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
rooms = {name.split(".")[1] for name in names if "." in name}
assert {"env", "solver", "agents", "proto", "service", "cli"} <= rooms, rooms
print(f"{len(names)} modules imported from {go_opt.__file__}")

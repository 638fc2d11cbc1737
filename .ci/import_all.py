"""Import every module of the installed package; run from outside the checkout."""

from __future__ import annotations

import importlib
import pkgutil

import go_opt

# Regenerating stubs needs the `test` extra, the Gymnasium environment `gymnasium`, stage models `run`.
NEED_EXTRAS = (
    "go_opt.proto.generate",
    "go_opt.gymnasium_environment",
    "go_opt.run.cut.",
    "go_opt.run.profiling.",
)

names = [module.name for module in pkgutil.walk_packages(go_opt.__path__, "go_opt.")]
names = [name for name in names if not name.startswith(NEED_EXTRAS) and not name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
rooms = {name.split(".")[1] for name in names}
assert {"env", "solver", "agents", "proto", "service", "cli"} <= rooms, rooms
print(f"{len(names)} modules imported from {go_opt.__file__}")

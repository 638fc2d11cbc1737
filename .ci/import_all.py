"""Import every module of the installed package; run from outside the checkout."""

from __future__ import annotations

import importlib
from pathlib import Path

import go_opt
from go_opt.extras import EXTRA_OF

# Of what is not installed: the packages of extras, and what the stubs of the protos are generated with.
MAY_BE_MISSING = {*EXTRA_OF, "grpc_tools"}
NEED_EXTRAS = (
    *("agents.networks", "agents.policy", "agents.training", "calibration", "gymnasium_environment"),
    *("parallel.execution", "proto.generate", "run.profiling"),
)

# pkgutil does not look into folders without an __init__.py, so the files are listed.
installed = Path(str(go_opt.__file__)).parent
files = [path.relative_to(installed.parent).with_suffix("") for path in sorted(installed.rglob("*.py"))]
names = [".".join(path.parts).removesuffix(".__init__") for path in files]
imported = []
for name in names:
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
            imported.append(name)
        except (ModuleNotFoundError, go_opt.errors.InvalidInputError) as error:
            missing = getattr(error, "name", None) or "gymnasium"
            needs = name.removeprefix("go_opt.").startswith(NEED_EXTRAS)
            if not needs or missing.partition(".")[0] not in MAY_BE_MISSING:
                raise
rooms = {name.split(".")[1] for name in imported if "." in name}
assert {"env", "solver", "agents", "proto", "service", "cli"} <= rooms, rooms
print(f"{len(imported)} of {len(names)} modules imported from {go_opt.__file__}")

"""Lint the protos and compare them with the published ones, by buf from npm.

``python .ci/protos.py publish`` takes the protos as they are for the published ones, unless
they break those; run it after every compatible change.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "tests" / "proto" / "published.binpb"
BUF = "@bufbuild/buf@1.75.0"


def main() -> None:
    sys.path.insert(0, str(ROOT))  # the protos of this checkout, whichever is installed
    from go_opt.proto.generate import compile_descriptors

    if shutil.which("npm") is None:
        sys.exit("protos: npm is missing; it installs buf, which lints and compares the protos.")
    with tempfile.TemporaryDirectory() as folder:
        npm = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", BUF]
        subprocess.run(npm, check=True, stdout=subprocess.DEVNULL)
        image = Path(folder) / "protos.binpb"
        compile_descriptors(image, comments=True)
        # What googleapis-common-protos holds is not ours to judge.
        ours = ("--path", "go_opt/proto", "--config", ROOT / "proto" / "buf.yaml")
        buf = Path(folder) / "node_modules" / ".bin" / "buf"
        checks = [[buf, "lint", image, *ours], [buf, "breaking", image, "--against", PUBLISHED, *ours]]
        refused = [check for check in checks if subprocess.run(check, check=False).returncode]
        if refused:
            sys.exit("protos: buf finds the faults above.")
    if sys.argv[1:] == ["publish"]:
        compile_descriptors(PUBLISHED, comments=False)
    print(f"protos: no fault, nothing of {PUBLISHED.name} is broken.")


if __name__ == "__main__":
    main()

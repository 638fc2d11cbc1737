"""The command line ``go-opt``. Heavy imports come only after the Ctrl-C handler is set."""

import os
import signal
from typing import Final, NoReturn

INTERRUPTED: Final = 130  # the exit code: 128 + SIGINT, as shells report it


def main() -> NoReturn:
    """Run the command line; every failure is one sentence on stderr and an exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller has its own handler
        signal.signal(signal.SIGINT, end_at_once)
    # The policy's matrix products are small: extra threads would wait for those of the search.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported
    from go_opt.cli import app

    app.main()


def end_at_once(signal_number: int, frame: object) -> NoReturn:
    """Print one line and exit, because loading compiled libraries may swallow an exception."""
    os.write(2, b"go-opt: interrupted.\n")
    os._exit(INTERRUPTED)


__all__ = ["main"]

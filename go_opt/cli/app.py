"""Commands of ``go-opt`` and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

import typer

from go_opt.cli import listing, plans, serving
from go_opt.errors import GoOptError

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells report it

app = typer.Typer(
    name="go-opt",
    help="Where each op of an ML graph runs, in which order, and which ops are fused.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("optimize")(plans.optimize)
app.command("evaluate")(plans.evaluate)
app.command("verify")(plans.verify)
app.command("serve")(serving.serve)
app.add_typer(listing.targets_app, name="targets")
app.add_typer(listing.zoo_app, name="zoo")

# typer carries its own copy of click in some versions, so its base error is found by name.
_UsageError = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def main() -> NoReturn:
    """Run the command line; every failure is one sentence on stderr and an exit code."""
    try:
        code = app(standalone_mode=False)
    except GoOptError as error:
        code = _fail(str(error), error.exit_code)
    except _UsageError as error:  # type: ignore[misc]
        # A bare `go-opt` comes as an error too; its message is the help text.
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        code = _show_help(error.format_message()) if is_help else _fail(error.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted before there was a plan.", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away; what is left to flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code or 0)


def _show_help(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


def _fail(message: str, code: int) -> int:
    print(f"go-opt: {message}", file=sys.stderr)
    return code

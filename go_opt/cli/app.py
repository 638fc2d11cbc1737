"""Commands of ``go-opt`` and the one place where errors become exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from importlib import metadata
from typing import Annotated, NoReturn, TextIO

import typer

from go_opt.cli.commands import (
    INTERRUPTED,
    bench,
    chips,
    drawing,
    jobs,
    listing,
    plans,
    running,
    serving,
    training,
)
from go_opt.errors import GoOptError, ServiceError

app = typer.Typer(
    name="go-opt",
    help="Where each op of an ML graph runs, in which order, and which ops are fused.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("optimize")(plans.optimize)
app.command("chips")(chips.chips)
app.command("evaluate")(plans.evaluate)
app.command("verify")(plans.verify)
app.command("diff")(plans.diff)
app.command("explain")(drawing.explain)
app.command("trace")(drawing.trace)
app.command("report")(drawing.report)
app.command("export")(running.export)
app.command("run")(running.run)
app.command("profile")(running.profile)
app.command("calibrate")(running.calibrate)
app.command("bench")(bench.bench)
app.command("pretrain")(training.pretrain)
app.command("finetune")(training.finetune)
app.command("serve")(serving.serve)
app.add_typer(jobs.jobs_app, name="jobs")
app.add_typer(listing.targets_app, name="targets")
app.add_typer(listing.zoo_app, name="zoo")

# typer carries its own copy of click in some versions, so its base error is found by name.
_UsageError = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        try:
            typer.echo(f"go-opt {metadata.version('go-opt')}")
        except metadata.PackageNotFoundError:
            typer.echo("go-opt, of a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Where each op of an ML graph runs, in which order, and which ops are fused."""


def main() -> NoReturn:
    """Run the command line; every failure is one sentence on stderr and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names the terminal cannot show
    warnings.showwarning = _show_warning
    try:
        code = app(standalone_mode=False, prog_name=app.info.name)
        if code == INTERRUPTED:  # what recent versions of typer make of Ctrl-C
            raise KeyboardInterrupt
    except GoOptError as error:
        # A service names the request, by which its log is searched.
        notes = getattr(error, "__notes__", ()) if isinstance(error, ServiceError) else ()
        code = _fail("".join([str(error), *(f" ({note})" for note in notes)]), error.exit_code)
    except _UsageError as error:  # type: ignore[misc]
        # A bare `go-opt` comes as an error too; its message is the help text.
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        code = _show_help(error.format_message()) if is_help else _fail(error.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted.", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()  # its reader went away
        code = 1
    except OSError as error:
        if error.filename is not None:  # a file we opened: a defect, not a full disk behind stdout
            raise
        _drop_output()
        code = _fail(f"the output cannot be written: {error.strerror or error}.", 2)
    sys.exit(code or 0)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line for what concerns the input; other warnings are as Python shows them."""
    is_ours = category.__module__.startswith("go_opt.")
    text = f"go-opt: {message}\n" if is_ours else warnings.formatwarning(message, category, filename, lineno)
    (file or sys.stderr).write(text)


def _drop_output() -> None:
    """What is left to flush has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_help(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


def _fail(message: str, code: int) -> int:
    print(f"go-opt: {message}", file=sys.stderr)
    return code

"""The list of commands of ``go-opt``, and the only place that maps errors to exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from go_opt.cli import INTERRUPTED
from go_opt.common.units import VisibleStream
from go_opt.errors import GoOptError, ServiceError

# The module of each command in go_opt/cli/commands/, which loads when the command runs, and what the list
# of commands says. A function has the command's name; a group of commands is called ``{name}_app``.
COMMANDS: Final = {
    "inspect": ("listing", "Describe a model before any target."),
    "optimize": ("plans", "Find a plan, and a bound on how good a plan can be."),
    "chips": ("chips", "Plan a model for several numbers of chips."),
    "design": ("chips", "Find the links or memory a package needs."),
    "evaluate": ("plans", "Cost a plan: interval, latency, bottleneck."),
    "verify": ("plans", "Check a plan against every constraint."),
    "diff": ("plans", "Show the differences between two plans."),
    "explain": ("plans", "Explain what a plan costs and what limits it."),
    "trace": ("plans", "Write when each kernel and transfer runs."),
    "report": ("plans", "Write a plan as one HTML page."),
    "export": ("running", "Write each stage of a plan as a model."),
    "run": ("running", "Run the stages of a plan in ONNX Runtime."),
    "profile": ("running", "Measure this machine, and write it as a target."),
    "calibrate": ("calibration", "Fit a target's figures to measured plans or kernels."),
    "costs": ("calibration", "Predict the seconds of GPU kernels and collectives."),
    "bench": ("bench", "Compare methods with equal time or evaluations."),
    "pretrain": ("training", "Train one policy for many graphs and packages."),
    "finetune": ("training", "Train a policy further on one model."),
    "serve": ("serving", "Serve plans, rewards and training over gRPC."),
    "jobs": ("training", "The training jobs of a service."),
    "targets": ("listing", "The targets that ship, and files of your own."),
    "zoo": ("listing", "The model graphs that ship."),
}


class CommandOnUse(TyperCommand):
    """A command of the list; its module is imported when it is used."""

    @cached_property
    def loaded(self) -> TyperCommand | TyperGroup:
        """The command itself, with its options."""
        assert self.name is not None
        module = import_module(f"go_opt.cli.commands.{COMMANDS[self.name][0]}")
        found = getattr(module, f"{self.name}_app", None)
        if found is None:
            found = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            found.command(self.name)(getattr(module, self.name))
        command: TyperCommand | TyperGroup = typer.main.get_command(found)  # type: ignore[assignment]
        return command

    def make_context(self, *args: Any, **options: Any) -> Any:
        return self.loaded.make_context(*args, **options)


class _Commands(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (_, summary) in COMMANDS.items():
            self.add_command(CommandOnUse(name, help=summary, rich_markup_mode=None))


app = typer.Typer(
    name="go-opt",
    cls=_Commands,
    help="Where each op of an ML graph runs, in which order, and which ops are fused.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Some versions of typer include their own copy of click, so the base error is found by name.
_UsageError = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib import metadata

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
    streams = sys.stdout, sys.stderr
    # Every line of every command passes here, so that no name can command the terminal.
    sys.stdout, sys.stderr = map(VisibleStream, streams)
    try:
        code = _run()
    finally:
        sys.stdout, sys.stderr = streams
    sys.exit(code)


def _run() -> int:
    """Run the command line and return its exit code."""
    try:
        code = app(standalone_mode=False, prog_name=app.info.name)
        if code == INTERRUPTED:  # what recent versions of typer return after Ctrl-C
            raise KeyboardInterrupt
    except GoOptError as error:
        # The note has the request id, which finds the call in the service's log.
        notes = getattr(error, "__notes__", ()) if isinstance(error, ServiceError) else ()
        code = _fail("".join([str(error), *(f" ({note})" for note in notes)]), error.exit_code)
    except _UsageError as error:  # type: ignore[misc]
        # A bare `go-opt` is an error too; its message is the help text.
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        code = _show_help(error.format_message()) if is_help else _fail(error.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted.", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()  # the reader has closed the pipe
        code = 1
    except OSError as error:
        if error.filename is not None:  # a file that go-opt opened: a defect, not a full disk behind stdout
            raise
        _drop_output()
        code = _fail(f"the output cannot be written: {error.strerror or error}.", 2)
    return code or 0


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints go-opt's warnings as one line; shows other warnings as Python does."""
    is_ours = category.__module__.startswith("go_opt.")
    text = f"go-opt: {message}\n" if is_ours else warnings.formatwarning(message, category, filename, lineno)
    (file or sys.stderr).write(text)


def _drop_output() -> None:
    """Redirect stdout to the null device, so that the final flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_help(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


def _fail(message: str, code: int) -> int:
    print(f"go-opt: {message}", file=sys.stderr)
    return code

"""Training jobs of a service: ``jobs list|get|wait|cancel|delete``, and starting a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from go_opt.cli import INTERRUPTED
from go_opt.cli.commands.options import Answer, Connection, Output, OverwriteOption, with_options
from go_opt.cli.inputs.interrupt import interrupts_raised
from go_opt.common.outputs import PLAN
from go_opt.errors import InvalidInputError
from go_opt.service.transport.address import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from go_opt.service.client.client import Client
    from go_opt.service.client.operation import JobResult, Operation

_POLL_S: Final = 1.0
_OF_THIS_MACHINE: Final = ("out", "split", "workers", "graphs_per_step", "coordinator", "hosts", "host")

jobs_app = typer.Typer(
    help=f"The training jobs of a service, by default of {DEFAULT_ADDRESS}.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As list and pretrain print it.")]


@jobs_app.command("list")
@with_options
def list_jobs(connection: Connection) -> Answer:
    """List all jobs, including finished ones, with their progress."""
    from go_opt.report.training import job_to_dict, jobs_table

    with connection.client() as client:
        operations = client.list_operations()
    return Answer(lambda: list(map(job_to_dict, operations)), lambda: [jobs_table(operations)])


@jobs_app.command("get")
@with_options
def get_job(name: NameArgument, connection: Connection) -> Answer:
    """Show the progress of a job."""
    from go_opt.report.training import job_lines, job_to_dict

    with connection.client() as client:
        operation = client.operation(name)
    return Answer(lambda: job_to_dict(operation), lambda: [job_lines(operation)])


@jobs_app.command("wait")
@with_options
def wait_for_job(
    name: NameArgument,
    connection: Connection,
    out: Annotated[
        Path | None,
        Output({"": PLAN}),
        typer.Option(help="Write the best plan of a finetuning to this file."),
    ] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Show a job's progress until it is done; Ctrl-C leaves it running."""
    with connection.client() as client:
        operation = client.operation(name)
        if out is not None and operation.latest.kind != "finetune":
            raise InvalidInputError(f"--out: {name} is a pretraining and makes no plan.", field="out")
        result = _follow(operation, connection)
    if out is not None and result.plan is not None:
        from go_opt.model.codecs.plan_json import save_plan

        save_plan(result.plan, out)
    return _result(operation, result)


@jobs_app.command("cancel")
@with_options
def cancel_job(name: NameArgument, connection: Connection) -> None:
    """Stop a job; the policy trained so far is kept."""
    with connection.client() as client:
        client.operation(name).cancel()


@jobs_app.command("delete")
@with_options
def delete_job(name: NameArgument, connection: Connection) -> None:
    """Delete a finished job and its policy."""
    with connection.client() as client:
        client.operation(name).delete()


@dataclass(frozen=True)
class JobOptions:
    """Options of a training job at a service, and of its output."""

    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --server: what the policy is called there.")
    ] = None
    shared: Annotated[
        bool,
        typer.Option("--shared", help="With --server: every caller may see the job and use its policy."),
    ] = False
    wait: Annotated[bool, typer.Option("--wait", help="With --server: follow the job to its end.")] = False


def submit(connection: Connection, job: JobOptions, start: Callable[[Client], Operation]) -> Answer:
    """Start a job and answer with its name; with ``--wait``, follow the job to its end."""
    from go_opt.report.training import job_to_dict

    with connection.client() as client:
        operation = start(client)
        if job.wait:
            typer.echo(operation.name, err=True)
            return _result(operation, _follow(operation, connection))
    return Answer(lambda: job_to_dict(operation), lambda: [[operation.name]])


def name_at_service(context: typer.Context, job: JobOptions) -> str:
    """The policy's name; raises if options of a run on this machine are given."""
    _refuse_given(context, _OF_THIS_MACHINE, "is of a training on this machine, not at a service")
    if job.name is None:
        raise InvalidInputError("--server needs --name, what the policy is called there.", field="name")
    return job.name


def folder_here(out: Path | None, context: typer.Context, connection: Connection) -> Path:
    """The folder of the run; raises if options of a service are given."""
    connection.refuse_without_server()
    _refuse_given(context, ("name", "shared", "wait"), "needs --server")
    if out is None:
        raise InvalidInputError("--out is missing, the folder of the run.", field="out")
    return out


def _follow(operation: Operation, connection: Connection) -> JobResult:
    from go_opt.report.training import TrainingProgress

    progress = TrainingProgress(of_one_graph=operation.latest.kind == "finetune")
    shown = 0
    try:
        with interrupts_raised():
            while True:
                job = operation.wait(_POLL_S)
                if job.step > shown:
                    shown = job.step
                    progress.on_progress(job)
                if job.is_done:
                    return operation.result()
    except KeyboardInterrupt:
        server = connection.server or DEFAULT_ADDRESS
        typer.echo(
            f"go-opt: {operation.name} goes on; "
            f"`go-opt jobs wait {operation.name} --server {server}` comes back to it.",
            err=True,
        )
        sys.exit(INTERRUPTED)  # not through typer, which treats 130 as its own interrupt


def _refuse_given(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise if one of the options is on the command line."""
    for name in names:
        source: Any = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidInputError(f"--{name.replace('_', '-')} {reason}.", field=name)


def _result(operation: Operation, result: JobResult) -> Answer:
    from go_opt.report.training import job_result_to_dict, result_lines

    return Answer(lambda: job_result_to_dict(operation, result), lambda: [result_lines(result)])

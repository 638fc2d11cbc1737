"""The training commands ``pretrain`` and ``finetune``, and ``jobs`` of a service."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from go_opt import api
from go_opt.cli import INTERRUPTED
from go_opt.cli.commands.options import (
    Answer,
    Connection,
    ModelArgument,
    Output,
    OverwriteOption,
    TargetOption,
    with_options,
)
from go_opt.cli.inputs.interrupt import StopOnSignals, interrupts_raised
from go_opt.cli.inputs.loading import Loading
from go_opt.common.outputs import PLAN, RUN
from go_opt.errors import InvalidInputError
from go_opt.extras import check_installed
from go_opt.report.progress import announce_compilation
from go_opt.service.transport.address import DEFAULT_ADDRESS, parse_address

if TYPE_CHECKING:
    from go_opt.service.client.client import Client
    from go_opt.service.client.operation import JobResult, Operation
    from go_opt.training import TrainingResult


SplitName = Literal["train", "validation", "test", "none"]
SIGNALLED: Final = 128  # added to the signal's number, as shells report it

_POLL_S: Final = 1.0
_OF_THIS_MACHINE: Final = ("out", "split", "workers", "graphs_per_step", "coordinator", "hosts", "host")

OutOption = Annotated[
    Path | None, Output(RUN, "--out", "-o", help="Folder of the run; an unfinished run is resumed.")
]
SamplesOption = Annotated[
    int, typer.Option("--samples", help="Plans to evaluate, rounded up to whole steps.")
]
WorkersOption = Annotated[
    int, typer.Option("--workers", help="Threads that decode and evaluate the graphs of a step.")
]


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


@dataclass(frozen=True)
class Training:
    """Options of training, both here and at a service."""

    target: TargetOption = "mcm-6x6"
    seed: Annotated[int, typer.Option(help="Same seed, same policy.")] = 0
    environment: Annotated[
        str,
        typer.Option(
            metavar="analytical|simulated|HOST:PORT",
            help="What evaluates plans: the model, the simulator, or a service, such as your own hardware.",
        ),
    ] = "analytical"
    lessons: Annotated[
        list[str] | None,
        typer.Option(
            "--lesson",
            metavar="NAME",
            help="What is learnt (repeat): placement (by the walk), order (and kernels, for the exact "
            "slicer), joint (all at once). [default: placement]",
        ),
    ] = None


@dataclass(frozen=True)
class Graphs:
    """The graphs on which a policy is pretrained."""

    graphs: Annotated[
        list[str] | None, typer.Option("--graph", metavar="MODEL", help="Learn from this graph (repeat).")
    ] = None
    generated_share: Annotated[float, typer.Option(help="Generated graphs among those of a step.")] = 0.4
    most_ops: Annotated[int, typer.Option(help="Ops of the largest graphs to learn from.")] = 512


@dataclass(frozen=True)
class Hosts:
    """How the steps of a run are distributed over hosts."""

    graphs_per_step: Annotated[int, typer.Option(help="A multiple of the devices of all hosts.")] = 4
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of host 0, for runs on several hosts.")
    ] = None
    hosts: Annotated[int | None, typer.Option(help="Number of hosts.")] = None
    host: Annotated[int | None, typer.Option(help="Number of this host, from 0.")] = None

    def join(self) -> bool:
        """Joins the run; True on host 0, which writes and reports. Call this before any use of JAX."""
        coordinator, hosts, host = self.coordinator, self.hosts, self.host
        if coordinator is None and hosts is None and host is None:
            return True
        if coordinator is None or hosts is None or host is None:
            raise InvalidInputError("--coordinator, --hosts and --host go together.", field="hosts")
        if not 0 <= host < hosts:
            raise InvalidInputError(f"--host is {host}, must be 0 to {hosts - 1}.", field="host")
        address = parse_address(coordinator)
        check_installed("--coordinator", "jax")
        import jax

        jax.distributed.initialize(str(address), hosts, host)
        return host == 0


@with_options
def pretrain(
    context: typer.Context,
    graphs: Graphs,
    training: Training,
    hosts: Hosts,
    job: JobOptions,
    connection: Connection,
    out: OutOption = None,
    split: Annotated[
        SplitName | None,
        typer.Option(help="Learn from this split of the zoo. [default: train, none with --graph]"),
    ] = None,
    samples: SamplesOption = 60_000,
    workers: WorkersOption = 1,
) -> Answer | None:
    """Train one policy for many graphs and packages."""
    options = {"samples": samples, **_keywords(graphs), **_keywords(training)}
    if connection.server is not None:
        name = name_at_service(context, job)
        return submit(connection, job, lambda client: client.pretrain(name, shared=job.shared, **options))
    folder = folder_here(out, context, connection)
    from go_opt import training as here

    here.check_folder(folder)
    is_first = hosts.join()

    def train(**watched: Any) -> TrainingResult:
        per_step = hosts.graphs_per_step
        return here.pretrain(
            folder, split=split, workers=workers, graphs_per_step=per_step, **options, **watched
        )

    return _run(train, is_first=is_first, of_one_graph=False)


@with_options
def finetune(
    context: typer.Context,
    model: ModelArgument,
    training: Training,
    loading: Loading,
    job: JobOptions,
    connection: Connection,
    out: OutOption = None,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME|PATH", help="Policy to start from: default, none or a file."),
    ] = "default",
    samples: SamplesOption = 200,
    workers: WorkersOption = 1,
) -> Answer | None:
    """Train a policy further on MODEL, and keep the best plan found."""
    options = {"samples": samples, **_keywords(training)}
    if connection.server is not None:
        name = name_at_service(context, job)
        graph = loading.load(model)
        return submit(
            connection,
            job,
            lambda client: client.finetune(name, graph, from_policy=policy, shared=job.shared, **options),
        )
    from go_opt import training as here

    folder = folder_here(out, context, connection)
    here.check_folder(folder)
    options["target"] = api.target(training.target)
    graph = loading.load(model)

    def train(**watched: Any) -> TrainingResult:
        return here.finetune(graph, folder, policy=policy, workers=workers, **options, **watched)

    return _run(train, is_first=True, of_one_graph=True)


def _keywords(options: Training | Graphs) -> dict[str, Any]:
    """The options as arguments of functions; a list that is not given is empty."""
    return {name: [] if value is None else value for name, value in vars(options).items()}


def _run(train: Callable[..., TrainingResult], *, is_first: bool, of_one_graph: bool) -> Answer | None:
    """Train until the end or a signal; the result is the answer of host 0."""
    from go_opt.report.training import TrainingProgress, print_trained, trained_to_dict

    announce_compilation()
    progress = TrainingProgress(of_one_graph=of_one_graph, is_quiet=not is_first)
    with StopOnSignals() as stop:

        def should_stop() -> bool:  # called before every step, so never for a complete run
            if not stop.is_requested():
                progress.on_start()
            return stop.is_requested()

        try:
            result = train(on_progress=progress.on_progress, should_stop=should_stop)
        except KeyboardInterrupt:
            typer.echo(
                "go-opt: stopped within a step; the same command goes on from the last checkpoint.", err=True
            )
            raise _exit(stop) from None
    failure = None
    if not result.is_complete:
        reached = f"step {result.step} of {result.steps}"
        typer.echo(f"go-opt: stopped after {reached}; the same command goes on from there.", err=True)
        failure = _exit(stop)
    if not is_first and failure is not None:
        raise failure
    shown = Answer(lambda: trained_to_dict(result), lambda: [lambda _: print_trained(result)], failure)
    return shown if is_first else None


def _exit(stop: StopOnSignals) -> SystemExit:
    """The exit, but not through typer, which treats 130 as its own interrupt."""
    return SystemExit(SIGNALLED + (stop.signal_number or signal.SIGINT))


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
        Path | None, Output(PLAN, help="Write the best plan of a finetuning to this file.")
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

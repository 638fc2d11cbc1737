"""The commands that train: ``pretrain`` and ``finetune``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import typer

from go_opt.cli.commands.connection import Connection, with_connection
from go_opt.cli.commands.interrupt import StopOnSignals
from go_opt.cli.commands.jobs import folder_here, name_at_service, submit
from go_opt.cli.commands.plans import DimOption, JsonOption, ModelArgument, PrecisionOption, parse_dims
from go_opt.errors import InvalidInputError
from go_opt.service.transport.address import parse_address

if TYPE_CHECKING:
    from go_opt.training import TrainingResult

SplitName = Literal["train", "validation", "test", "none"]
SIGNALLED: Final = 128  # added to the signal's number, as shells report it

OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder of the run; one that holds a part of this run is gone on with."),
]
NameOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="With --server: what the policy is called there.")
]
SharedOption = Annotated[
    bool, typer.Option("--shared", help="With --server: every caller may see the job and use its policy.")
]
WaitOption = Annotated[bool, typer.Option("--wait", help="With --server: follow the job to its end.")]
TargetOption = Annotated[str, typer.Option(help="Target name or .toml file.")]
SeedOption = Annotated[int, typer.Option(help="Same seed, same policy.")]
EnvironmentOption = Annotated[
    str,
    typer.Option(
        "--environment",
        metavar="analytical|simulated|HOST:PORT",
        help="What evaluates plans: the model, the simulator, or a service, such as your own hardware.",
    ),
]
LessonOption = Annotated[
    list[str] | None,
    typer.Option(
        "--lesson",
        metavar="NAME",
        help="What is learnt (repeat): order (and kernels, for the exact slicer), placement (by its own "
        "cuts), sample (placement op by op), joint (all at once). [default: order, placement, sample]",
    ),
]
WorkersOption = Annotated[int, typer.Option(help="Threads that decode and evaluate the graphs of a step.")]


@with_connection
def pretrain(
    context: typer.Context,
    out: OutOption = None,
    graph: Annotated[
        list[str] | None, typer.Option("--graph", metavar="MODEL", help="Learn from this graph (repeat).")
    ] = None,
    split: Annotated[
        SplitName | None,
        typer.Option(help="Learn from this split of the zoo. [default: train, none with --graph]"),
    ] = None,
    target: TargetOption = "mcm-6x6",
    samples: Annotated[int, typer.Option(help="Plans to evaluate, rounded up to whole steps.")] = 768_000,
    seed: SeedOption = 0,
    environment: EnvironmentOption = "analytical",
    lesson: LessonOption = None,
    workers: WorkersOption = 1,
    generated_share: Annotated[float, typer.Option(help="Generated graphs among those of a step.")] = 0.4,
    most_ops: Annotated[int, typer.Option(help="Ops of the largest graphs to learn from.")] = 512,
    graphs_per_step: Annotated[int, typer.Option(help="A multiple of the devices of all hosts.")] = 4,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the hosts of one run meet: on host 0.")
    ] = None,
    hosts: Annotated[int | None, typer.Option(help="Number of hosts.")] = None,
    host: Annotated[int | None, typer.Option(help="Number of this host, from 0.")] = None,
    name: NameOption = None,
    shared: SharedOption = False,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """Train one policy for many graphs and packages."""
    if connection.server is not None:
        policy = name_at_service(context, name)
        submit(
            connection,
            lambda client: client.pretrain(
                policy,
                graphs=graph or [],
                target=target,
                samples=samples,
                seed=seed,
                environment=environment,
                lessons=lesson or [],
                generated_share=generated_share,
                most_ops=most_ops,
                shared=shared,
            ),
            wait=wait,
            as_json=as_json,
        )
        return
    folder = folder_here(out, context, connection)
    from go_opt import training
    from go_opt.training_inputs import check_folder

    check_folder(folder)
    is_first = _join_hosts(coordinator, hosts, host)

    def train(**watched: Any) -> TrainingResult:
        return training.pretrain(
            folder,
            graphs=graph or [],
            split=split,
            target=target,
            samples=samples,
            seed=seed,
            environment=environment,
            lessons=lesson or [],
            workers=workers,
            generated_share=generated_share,
            most_ops=most_ops,
            graphs_per_step=graphs_per_step,
            **watched,
        )

    _run(train, as_json=as_json, is_first=is_first, of_one_graph=False)


@with_connection
def finetune(
    context: typer.Context,
    model: ModelArgument,
    out: OutOption = None,
    policy: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="To start from: default, none (untrained), or a file.")
    ] = "default",
    target: TargetOption = "mcm-6x6",
    samples: Annotated[int, typer.Option(help="Plans to evaluate, rounded up to whole steps.")] = 200,
    seed: SeedOption = 0,
    environment: EnvironmentOption = "analytical",
    lesson: LessonOption = None,
    precision: PrecisionOption = "native",
    dim: DimOption = None,
    workers: WorkersOption = 1,
    name: NameOption = None,
    shared: SharedOption = False,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """Make a policy better on MODEL, and keep the best plan met on the way."""
    from go_opt import api

    if connection.server is not None:
        named = name_at_service(context, name)
        graph = api.load(model, dims=parse_dims(dim or []), precision=precision)
        submit(
            connection,
            lambda client: client.finetune(
                named,
                graph,
                from_policy=policy,
                target=target,
                samples=samples,
                seed=seed,
                environment=environment,
                lessons=lesson or [],
                shared=shared,
            ),
            wait=wait,
            as_json=as_json,
        )
        return
    from go_opt import training
    from go_opt.training_inputs import check_folder

    folder = folder_here(out, context, connection)
    check_folder(folder)
    on = api.target(target)
    graph = api.load(model, dims=parse_dims(dim or []), precision=precision)

    def train(**watched: Any) -> TrainingResult:
        return training.finetune(
            graph,
            folder,
            target=on,
            policy=policy,
            samples=samples,
            seed=seed,
            environment=environment,
            lessons=lesson or [],
            workers=workers,
            **watched,
        )

    _run(train, as_json=as_json, is_first=True, of_one_graph=True)


def _run(train: Callable[..., TrainingResult], *, as_json: bool, is_first: bool, of_one_graph: bool) -> None:
    """Train until the end or a signal, and say what there is; the first host speaks for all."""
    from go_opt.report.progress import announce_compilation
    from go_opt.report.training_progress import TrainingProgress, print_trained, trained_to_dict

    announce_compilation()
    progress = TrainingProgress(of_one_graph=of_one_graph, is_quiet=not is_first)
    with StopOnSignals() as stop:

        def should_stop() -> bool:  # asked before every step, so not of a run that is complete
            if not stop.is_asked():
                progress.on_start()
            return stop.is_asked()

        try:
            result = train(on_progress=progress.on_progress, should_stop=should_stop)
        except KeyboardInterrupt:
            typer.echo(
                "go-opt: stopped within a step; the same command goes on from the last checkpoint.", err=True
            )
            _exit(stop)
    if is_first and as_json:
        typer.echo(json.dumps(trained_to_dict(result), allow_nan=False))
    elif is_first:
        print_trained(result)
    if not result.is_complete:
        reached = f"step {result.step} of {result.steps}"
        typer.echo(f"go-opt: stopped after {reached}; the same command goes on from there.", err=True)
        _exit(stop)


def _exit(stop: StopOnSignals) -> NoReturn:
    """Not by typer, which takes 130 for an interruption of its own."""
    sys.exit(SIGNALLED + (stop.signal_number or signal.SIGINT))


def _join_hosts(coordinator: str | None, hosts: int | None, host: int | None) -> bool:
    """Whether this host is the first, which writes and speaks; JAX must not be in use yet."""
    if coordinator is None and hosts is None and host is None:
        return True
    if coordinator is None or hosts is None or host is None:
        raise InvalidInputError("--coordinator, --hosts and --host go together.", field="hosts")
    if not 0 <= host < hosts:
        raise InvalidInputError(f"--host is {host}, must be 0 to {hosts - 1}.", field="host")
    address = parse_address(coordinator)

    import jax

    jax.distributed.initialize(str(address), hosts, host)
    return host == 0

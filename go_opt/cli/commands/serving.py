"""The command ``serve``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from go_opt.cli.commands.options import with_options
from go_opt.report.progress import announce_compilation


@dataclass(frozen=True)
class Access:
    """Who may reach the service."""

    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow addresses that other machines reach without encryption."),
    ] = False
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate chain (PEM).")] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only clients with a certificate of these authorities (PEM)."),
    ] = None
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only calls with a bearer token; the file has lines CLIENT TOKEN."),
    ] = None


@dataclass(frozen=True)
class Observation:
    """Metrics, logs and traces of the service."""

    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Prometheus metrics. [default: none]")
    ] = None
    metrics_to_others: Annotated[
        bool,
        typer.Option("--metrics-to-others", help="Allow other machines to reach the metrics, unencrypted."),
    ] = False
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Format of the log on stderr.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="info has a line for every call.")
    ] = "info"
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send OpenTelemetry spans there (extra otel). [default: none]"),
    ] = None


@dataclass(frozen=True)
class Jobs:
    """Which training jobs the service accepts."""

    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keeps jobs, policies and remembered plans. [default: none]"),
    ] = None
    remember: Annotated[
        bool, typer.Option("--remember", help="Searches begin with the caller's nearest plan.")
    ] = False
    jobs: Annotated[
        int | None, typer.Option(help="Training jobs at once, 0 for none. [default: 1 with --data-dir]")
    ] = None
    runner: Annotated[
        Literal["local", "ray"], typer.Option(help="Where jobs run: processes here, or a Ray cluster.")
    ] = "local"
    allow_environment: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="An environment that training jobs may name (repeat)."),
    ] = None


@with_options
def serve(
    access: Access,
    observation: Observation,
    jobs: Jobs,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:50051",
    workers: Annotated[
        int | None, typer.Option(help="Searches at once, each in its process. [default: one per CPU]")
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(help="Calls that may wait for a worker, a quarter of them of one client.")
    ] = 256,
) -> None:
    """Serve plans, rewards and training over gRPC until SIGTERM, then drain within 5 s."""
    from go_opt.service.assembly import Assembly
    from go_opt.service.calls.admission import AdmissionLimits
    from go_opt.service.calls.security import Security
    from go_opt.service.observability import Observability
    from go_opt.service.server import serve as serve_forever

    environments = tuple(jobs.allow_environment or ())
    assembly = Assembly(workers, jobs.data_dir, jobs.jobs, jobs.runner, environments, jobs.remember)
    announce_compilation()
    serve_forever(
        address,
        assembly.services,
        security=Security(**vars(access)),
        observability=Observability(**vars(observation)),
        workers=assembly.slots,
        limits=AdmissionLimits.of(max_waiting),
    )

"""The command that serves: ``serve``."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:50051",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that other machines reach.")
    ] = False,
) -> None:
    """Serve the optimizer over gRPC until SIGTERM, then drain within 5 s."""
    from go_opt.report.progress import announce_compilation
    from go_opt.service.server import serve as serve_forever

    announce_compilation()
    serve_forever(address, insecure)

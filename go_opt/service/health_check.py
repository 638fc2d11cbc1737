"""Asks a service how it is, for the probes of containers.

Ends with 0 where the service serves, with 1 and one sentence otherwise.
"""

from __future__ import annotations

import argparse
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from go_opt.common.units import visible
from go_opt.errors import GoOptError, ServiceError
from go_opt.service.transport.address import DEFAULT_ADDRESS, parse_address
from go_opt.service.transport.credentials import Credentials, channel

_Status = health_pb2.HealthCheckResponse.ServingStatus


def main(arguments: list[str] | None = None) -> int:
    """The exit code of the command with these arguments."""
    options = _parser().parse_args(arguments)
    try:
        _check(options)
    except GoOptError as error:
        print(visible(f"health check: {error}"), file=sys.stderr)
        return 1
    return 0


def _check(options: argparse.Namespace) -> None:
    """Return if the service is serving; ServiceError if it is not, or does not answer in time."""
    address = parse_address(options.address)
    name = options.tls_server_name
    override = [] if name is None else [("grpc.ssl_target_name_override", name)]
    credentials = Credentials(options.tls_cert is not None, options.tls_ca, options.tls_cert, options.tls_key)
    request = health_pb2.HealthCheckRequest(service=options.service)
    with channel(address, credentials, override) as opened:
        try:
            answer = health_pb2_grpc.HealthStub(opened).Check(request, timeout=options.timeout_s)
        except grpc.RpcError as error:
            details = " ".join(str(error.details()).split())
            raise ServiceError(f"{address} answers {error.code().name}: {details}") from None
    if answer.status != _Status.Value("SERVING"):
        raise ServiceError(f"{address} answers {_Status.Name(answer.status)}.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m go_opt.service.health_check", description=__doc__)
    parser.add_argument("address", nargs="?", default=DEFAULT_ADDRESS, metavar="HOST:PORT")
    parser.add_argument("--service", default="", help="full name of one service; by default the whole server")
    parser.add_argument("--tls-ca", metavar="FILE", help="PEM file of the authorities to trust")
    parser.add_argument("--tls-cert", metavar="FILE", help="PEM file of the prober's own certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="PEM file of its key")
    parser.add_argument("--tls-server-name", metavar="NAME", help="what the service's certificate names")
    parser.add_argument("--timeout-s", type=float, default=2.0, metavar="SECONDS")
    return parser


if __name__ == "__main__":
    sys.exit(main())

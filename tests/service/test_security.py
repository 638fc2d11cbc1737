"""Who may reach a service and who may call it: TLS, mutual TLS and tokens."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.wrappers_pb2 import BytesValue
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from go_opt.errors import InvalidInputError
from go_opt.service.calls.security import Security, Tokens
from go_opt.service.server import serve
from go_opt.service.transport.address import parse_address
from tests.serving import serve_in_thread

PATIENCE_S = 10.0
TOKEN, OTHER_TOKEN = "alice-has-this-token", "bob-has-another-token"


class Authority:
    """Signs certificates."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.certificate = self._signed(name, self._key.public_key(), is_authority=True)

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """A new certificate for the name, and its key, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
        cert_file.write_bytes(self._signed(name, key.public_key(), is_authority=False))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return cert_file, key_file

    def _signed(self, name: str, key: Any, *, is_authority: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("the authority")


@pytest.fixture
def certificate(authority: Authority, tmp_path: Path) -> dict[str, Path]:
    cert, key = authority.write(tmp_path, "localhost")
    return {"tls_cert": cert, "tls_key": key}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    write_tokens(path, f"# who may call\n\nalice {TOKEN}\nbob\t{OTHER_TOKEN}\n")
    return path


def write_tokens(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


@contextmanager
def channel_to(
    address: str, roots: bytes | None = None, client: tuple[Path, Path] | None = None
) -> Iterator[grpc.Channel]:
    if roots is None:
        channel = grpc.insecure_channel(address)
    else:
        chain, key = (None, None) if client is None else client
        credentials = grpc.ssl_channel_credentials(
            roots, key and key.read_bytes(), chain and chain.read_bytes()
        )
        # Of its own connection, not one that an earlier channel left open.
        options = (("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        channel = grpc.secure_channel(address, credentials, options)
    with channel:
        yield channel


def call(channel: grpc.Channel, value: bytes = b"x", token: str | None = None) -> Any:
    metadata = () if token is None else (("authorization", token),)
    data = BytesValue(value=value).SerializeToString()
    return channel.unary_unary("/toy.Toy/Quick").future(data, timeout=PATIENCE_S, metadata=metadata)


def health_of(channel: grpc.Channel) -> int:
    check = health_pb2_grpc.HealthStub(channel).Check
    return int(check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status)


def test_tls(toy: Any, authority: Authority, certificate: dict[str, Path]) -> None:
    with serve_in_thread([toy], security=Security(**certificate)) as address:
        with channel_to(address, authority.certificate) as channel:
            assert call(channel).result()
            assert health_of(channel) == health_pb2.HealthCheckResponse.SERVING
        with channel_to(address, Authority("another").certificate) as channel:
            assert call(channel).code() is grpc.StatusCode.UNAVAILABLE
        with channel_to(address) as channel:
            assert call(channel).code() is grpc.StatusCode.UNAVAILABLE
    assert toy.seen[0].client == "127.0.0.1"


def test_mutual_tls_knows_its_clients(
    toy: Any, authority: Authority, certificate: dict[str, Path], tmp_path: Path
) -> None:
    ca = tmp_path / "clients.crt"
    clients = Authority("of clients")
    ca.write_bytes(clients.certificate)
    with serve_in_thread([toy], security=Security(**certificate, tls_client_ca=ca)) as address:
        with channel_to(address, authority.certificate, clients.write(tmp_path, "carol")) as channel:
            assert call(channel).result()
        with channel_to(address, authority.certificate, authority.write(tmp_path, "mallory")) as channel:
            assert call(channel).code() is grpc.StatusCode.UNAVAILABLE
        with channel_to(address, authority.certificate) as channel:
            assert call(channel).code() is grpc.StatusCode.UNAVAILABLE
    assert [seen.client for seen in toy.seen] == ["carol"]


def test_tokens_name_their_clients(toy: Any, token_file: Path) -> None:
    with (
        serve_in_thread([toy], security=Security(tokens=token_file)) as address,
        channel_to(address) as channel,
    ):
        assert call(channel, token=f"Bearer {TOKEN}").result()
        assert call(channel, token=f"bearer {OTHER_TOKEN}").result()
    assert [seen.client for seen in toy.seen] == ["alice", "bob"]


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer ",
        "Bearer alice",
        f"Bearer {TOKEN} {TOKEN}",
    ],
)
def test_a_call_without_a_known_token_is_refused_unread(
    toy: Any, token_file: Path, token: str | None
) -> None:
    with (
        serve_in_thread([toy], security=Security(tokens=token_file)) as address,
        channel_to(address) as channel,
    ):
        refused = call(channel, bytes(2**20), token)
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
        assert refused.details() == "the call has no token that this service knows."
        assert "x-request-id" in dict(refused.initial_metadata())
    assert toy.seen == []


def test_only_health_is_open_without_a_token(toy: Any, token_file: Path) -> None:
    with (
        serve_in_thread([toy], security=Security(tokens=token_file)) as address,
        channel_to(address) as channel,
    ):
        assert health_of(channel) == health_pb2.HealthCheckResponse.SERVING
        listing = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        with pytest.raises(grpc.RpcError) as error:
            list(reflect(listing, timeout=PATIENCE_S))
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for path in ("/toy.Toy/Nothing", "/grpc.health.v1.Healthy/Check", "/toy.Toy/Batches"):
            refused = channel.unary_unary(path).future(b"", timeout=PATIENCE_S)
            assert refused.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("", 0o600, "holds no token"),
        ("# nothing\n", 0o600, "holds no token"),
        (f"alice {TOKEN}\n", 0o604, "open to other users of this machine; chmod it to 600"),
        (f"alice {TOKEN}\n{TOKEN}\n", 0o600, "line 2 of"),
        ("alice short\n", 0o600, "16 to 512 visible ASCII characters"),
        (f"alice {TOKEN}\nbob {TOKEN}\n", 0o600, "line 2 of .* repeats the token of another client"),
        (f"alice {TOKEN}é\n", 0o600, "is not ASCII text"),
    ],
)
def test_a_file_of_tokens_that_cannot_be_used(token_file: Path, text: str, mode: int, words: str) -> None:
    write_tokens(token_file, text, mode)
    with pytest.raises(InvalidInputError, match=words) as error:
        Tokens(token_file)
    assert error.value.field == "tokens"
    assert TOKEN not in str(error.value)


def test_files_that_are_missing_or_do_not_fit_are_refused(
    certificate: dict[str, Path], authority: Authority, tmp_path: Path
) -> None:
    _, other_key = authority.write(tmp_path, "other")
    missing = tmp_path / "missing"
    cert, key = certificate["tls_cert"], certificate["tls_key"]
    for security, field in (
        (Security(tokens=missing), "tokens"),
        (Security(tls_cert=missing, tls_key=key), "tls_cert"),
        (Security(tls_cert=cert, tls_key=missing), "tls_key"),
        (Security(tls_cert=cert, tls_key=other_key), "tls_cert"),
        (Security(tls_cert=key, tls_key=key), "tls_cert"),
        (Security(tls_cert=cert, tls_key=key, tls_client_ca=missing), "tls_client_ca"),
        (Security(tls_cert=cert, tls_key=key, tls_client_ca=key), "tls_client_ca"),
    ):
        with pytest.raises(InvalidInputError) as error:
            security.load()
        assert error.value.field == field
        assert str(error.value).count("\n") == 0


def test_flags_that_go_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--tls-cert and --tls-key go together"):
        Security(tls_cert=tmp_path)
    with pytest.raises(InvalidInputError, match="--tls-client-ca needs --tls-cert"):
        Security(tls_client_ca=tmp_path)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "example.org:1"])
def test_an_address_that_others_reach_needs_tls_or_the_flag(address: str, tmp_path: Path) -> None:
    place = parse_address(address)
    with pytest.raises(InvalidInputError, match="would have no encryption; give --tls-cert") as error:
        serve(address, list)
    assert error.value.field == "insecure"
    with pytest.raises(InvalidInputError, match="tokens would travel unencrypted"):
        serve(address, list, security=Security(tokens=tmp_path / "tokens"))
    Security(insecure=True).check_address(place)
    Security(tls_cert=tmp_path, tls_key=tmp_path).check_address(place)
    with pytest.raises(InvalidInputError, match="metrics are not encrypted"):
        Security(tls_cert=tmp_path, tls_key=tmp_path).check_plain_address(place)
    Security(insecure=True).check_plain_address(place)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.5.5.5:1"])
def test_this_machine_alone_needs_nothing(address: str) -> None:
    Security().check_address(parse_address(address))
    Security().check_plain_address(parse_address(address))

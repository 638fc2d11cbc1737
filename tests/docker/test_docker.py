"""The files of docker/ fit together and fit the program; none of it needs an engine."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
import yaml
from packaging.requirements import Requirement

from go_opt.cli.app import app
from go_opt.service import health_check
from go_opt.service.calls.calls import Calls
from go_opt.service.observability import Metrics

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text("utf-8")
README = (DOCKER / "README.md").read_text("utf-8")
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
DEPLOYMENT, SERVICE, BUDGET = yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text("utf-8"))
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def serve_options(arguments: list[str]) -> dict[str, Any]:
    """What ``go-opt`` makes of the arguments of a container; fails where it refuses them."""
    assert arguments[0] == "serve"
    command = typer.main.get_command(app).commands["serve"].loaded  # type: ignore[attr-defined]
    return dict(command.make_context("serve", arguments[1:]).params)


def probe(command: list[str]) -> Any:
    """The parsed arguments of a health check."""
    assert command[:3] == ["python", "-m", health_check.__name__]
    return health_check._parser().parse_args(command[3:])


def pinned() -> dict[str, str]:
    lines = (DOCKER / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def test_the_image_holds_versions_that_the_program_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["otel"], *extras["train"]]:
        requirement = Requirement(line)
        version = pinned()[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        assert requirement.specifier.contains(version), f"{line}: {version}"


def test_everything_copied_is_there_and_not_ignored() -> None:
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in [word for word in shlex.split(line) if not word.startswith("--")][:-1]
    } | set(re.findall(r"--mount=source=(\S+?),", DOCKERFILE))
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-dir"]
    assert set(rooms.values()) <= copied


def test_the_user_is_the_same_everywhere() -> None:
    (user,) = re.findall(r"^USER (\d+):\1$", DOCKERFILE, re.MULTILINE)
    assert user != "0"
    security = POD["securityContext"]
    assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == int(user)
    assert f"{user}:{user}" in README


def test_the_default_command_refuses_to_serve_unprotected() -> None:
    (command,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    options = serve_options(yaml.safe_load(command))
    assert not options["insecure"]
    assert options["address"] == "0.0.0.0:50051"


@pytest.mark.parametrize("arguments", [COMPOSE["services"]["server"]["command"], CONTAINER["args"]])
def test_the_arguments_are_those_of_serve(arguments: list[str]) -> None:
    options = serve_options(arguments)
    exposed = re.findall(r"^EXPOSE (\d+) (\d+)$", DOCKERFILE, re.MULTILINE)
    assert [(options["address"].split(":")[1], options["metrics"].split(":")[1])] == exposed
    assert options["workers"] is not None  # otherwise one for each CPU of the machine
    if options["data_dir"] is not None:
        assert f"VOLUME {options['data_dir']}" in DOCKERFILE


def test_the_docker_run_of_the_readme_is_understood() -> None:
    (command,) = re.findall(r"^docker run (.*?)\n```", README, re.MULTILINE | re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))
    options = serve_options(words[words.index("serve") :])
    assert options["tls_cert"] == Path("/tls/tls.crt")
    probe(shlex.split(words[words.index("--health-cmd") + 1]))


def test_every_probe_is_understood() -> None:
    (image,) = re.findall(r"^  CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert probe(yaml.safe_load(image)).address == "127.0.0.1:50051"
    (kind, *composed) = COMPOSE["services"]["server"]["healthcheck"]["test"]
    assert kind == "CMD"
    probe(composed)
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = CONTAINER[name]
        options = probe(asked["exec"]["command"])
        assert options.tls_ca
        assert asked["timeoutSeconds"] > options.timeout_s
    for block in re.findall(r"^python -m go_opt\S+ .*$", README, re.MULTILINE):
        probe(shlex.split(block))


def test_nothing_can_be_written_but_the_data_and_memory() -> None:
    for service in COMPOSE["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["mem_limit"]
        assert service["cpus"]
        assert service["healthcheck"]["test"]
    security = CONTAINER["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in CONTAINER["volumeMounts"]}
    assert [path for path, is_read_only in mounts.items() if not is_read_only] == ["/tmp"]
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == {v["name"] for v in POD["volumes"]}


def test_there_is_time_to_drain() -> None:
    grace_s = float(COMPOSE["services"]["server"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > 5
    waited_s = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > waited_s + 5


def test_services_select_the_pods() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"] == BUDGET["spec"]["selector"]["matchLabels"] == labels
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels


def test_prometheus_asks_for_metrics_that_there_are() -> None:
    configuration = yaml.safe_load((DOCKER / "prometheus.yml").read_text("utf-8"))
    (job,) = configuration["scrape_configs"]
    ((target,),) = [static["targets"] for static in job["static_configs"]]
    host, port = target.split(":")
    assert serve_options(COMPOSE["services"][host]["command"])["metrics"].endswith(f":{port}")
    (rules,) = configuration["rule_files"]
    mounted = [volume.split(":")[:2] for volume in COMPOSE["services"]["prometheus"]["volumes"]]
    assert [f"./{rules}", f"/etc/prometheus/{rules}"] in mounted
    metrics = Metrics()
    metrics.watch_calls(cast("Calls", SimpleNamespace(queues=())))
    known = {family.name for family in metrics.registry.collect()}
    (group,) = yaml.safe_load((DOCKER / rules).read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        assert f'job="{job["job_name"]}"' in rule["expr"] or "go_opt_" in rule["expr"]
        for name in re.findall(r"go_opt_\w+", rule["expr"]):
            assert re.sub(r"_(total|bucket)$", "", name) in known, name


def test_the_entrypoint_links_what_the_image_compiled(tmp_path: Path) -> None:
    built, cache = tmp_path / "built", tmp_path / "cache"
    (built / "numba").mkdir(parents=True)
    (built / "numba" / "kernel.nbi").write_text("compiled", "utf-8")
    script = (DOCKER / "entrypoint.sh").read_text("utf-8").replace("/opt/go-opt/cache", str(built))
    command = ["sh", "-c", script, "entrypoint.sh", "cat", str(cache / "numba" / "kernel.nbi")]
    for _ in range(2):  # the second time as after a restart of the same container
        run = subprocess.run(
            command,
            env={"XDG_CACHE_HOME": str(cache), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=True,
        )
        assert run.stdout == b"compiled"
    assert (cache / "numba" / "kernel.nbi").is_symlink()

"""The compose files: true to the code's settings, ports, routes and roles, as locked down as they say, and accepted."""

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from common.network import split_host_port
from common.redis.users import PASSWORD, USERS
from common.settings import KNOWN_NAMES
from common.trust.roles import Role, RoleName
from discovery.settings import DiscoverySettings
from gateway.http.endpoint.service import Service as GatewayService
from gateway.http.routes import make_routes
from gateway.settings import GatewaySettings
from runner.host.settings import HostSettings
from scheduler.settings import SchedulerSettings
from tests.integration.deploy.compose_files import (
    ADDITIONS,
    ARTIFACTS,
    FILES,
    FOLDER,
    HOST,
    MAIN,
    ROOT,
    SAID,
    Service,
    document,
    services,
    variables,
)

SETTINGS: Mapping[str, type[Any]] = {
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "discovery": DiscoverySettings,
    "host": HostSettings,
}
LISTENERS = ("HOST", "GRPC_HOST", "SCHEDULER_LISTEN", "DISCOVERY_LISTEN", "NODE_LISTEN", "TUNNEL_LISTEN", "JOIN_LISTEN")
METRICS = "PUNA_METRICS_LISTEN"
IMAGE = "deploy/Dockerfile"
# What somebody may publish, and with which file.
PUBLISHED = {
    MAIN: {"gateway": {11434, 11435}},
    f"{FOLDER}/join.yml": {"discovery": {7601, 7605}},
    f"{FOLDER}/dashboards.yml": {"grafana": {3000}, "prometheus": {9090}},
}
# Made by the operator, or by compose itself.
OPERATORS_OWN = {"./keys", "./tls"}
TRUST = "/etc/puna/trust"
READ_BY_COMPOSE = {"COMPOSE_PROFILES", "COMPOSE_FILE"}

every_file = pytest.mark.parametrize("file", FILES)


def role_of(service: Service) -> str | None:
    """The role of Puna's image that a service runs; None for the images of others."""
    command = service.get("command") or [""]
    return command[0] if command[0] in SETTINGS else None


def each(*files: str) -> Iterator[tuple[str, str, Service]]:
    for file in files or FILES:
        for name, service in services(file).items():
            yield file, name, service


def listeners(service: Service) -> set[int]:
    """The ports that a role's settings open."""
    environment = service.get("environment", {})
    names = [*(f"PUNA_{name}" for name in LISTENERS), METRICS]
    return {split_host_port(environment[name])[1] for name in names if name in environment}


def routes() -> set[str]:
    nothing = cast("Any", None)
    service = GatewayService(inference=nothing, scheduler=nothing, stores=nothing, version="0")
    return {route.path for route in make_routes(service)}


def jobs_of(config: str) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = yaml.safe_load(text_of(f"deploy/prometheus/{config}"))["scrape_configs"]
    return jobs


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_there_is_a_profile_for_each_kind_of_cluster() -> None:
    profiles = {name: tuple(service.get("profiles", ())) for name, service in services(MAIN).items()}
    assert profiles == {
        **dict.fromkeys(("trust", "redis", "discovery", "scheduler", "gateway"), ()),
        "host": ("cpu",),
        "host-2": ("second-host",),
        "host-nvidia": ("nvidia",),
        "prometheus": ("monitoring",),
        "grafana": ("monitoring",),
    }
    assert {name: service.get("profiles", []) for name, service in services(HOST).items()} == {
        "join": [],
        "host": ["cpu"],
        "host-nvidia": ["nvidia"],
    }


@every_file
def test_names_of_settings_exist_and_their_values_are_accepted(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, service in services(file).items():
        environment = service.get("environment", {})
        assert {one for one in environment if one.startswith("PUNA_")} <= KNOWN_NAMES, f"{file}: {name}"
        role = role_of(service)
        if role is None:
            assert name == "join" or not any(one.startswith("PUNA_") for one in environment)
            continue
        with monkeypatch.context() as patch:
            for one, value in environment.items():
                assert isinstance(value, str), f"{file}: {name}: {one} is no text"
                patch.setenv(one, value)
            settings = SETTINGS[role].load()
        fields = {f"PUNA_{one.upper()}" for one in type(settings).model_fields}
        addresses = {"PUNA_DISCOVERY_ADDRESS", "PUNA_SCHEDULER_ADDRESS"}  # one map for every role
        of_commands = {"PUNA_HOME"} if role == "gateway" else set()  # where operators run `puna`
        unused = {one for one in environment if one.startswith("PUNA_")} - fields - addresses - of_commands
        assert not unused, f"{file}: {name} reads none of {sorted(unused)}"


def test_the_image_sets_known_names_and_has_every_role() -> None:
    dockerfile = text_of("deploy/Dockerfile")
    assert {*re.findall(r"\b(PUNA_[A-Z_]+)=", dockerfile)} == {"PUNA_HOME", "PUNA_MODELS"} <= KNOWN_NAMES
    entry = text_of("deploy/entrypoint.sh")
    roles = set(next(iter(re.findall(r'^roles="(.*)"$', entry, re.MULTILINE))).split(", "))
    used = {service["command"][0] for _, _, service in each() if role_of(service)}
    assert used == set(SETTINGS)
    assert used | {"redis-server", "trust", "join"} == roles
    copied = re.findall(r"^COPY (?:--chown=\S+ )?(?!--from)([^\n]+) \S+$", dockerfile, re.MULTILINE)
    for source in itertools.chain.from_iterable(line.split() for line in copied):
        assert "[" in source or (ROOT / source).exists(), source


@every_file
def test_health_is_asked_where_the_service_listens(file: str) -> None:
    for name, service in services(file).items():
        kind, *command = service["healthcheck"]["test"]
        if role_of(service) is None:
            continue
        assert (kind, command[:2]) == ("CMD", ["python", "-m"])
        assert find_spec(command[2]) is not None
        address = command[3]
        if "://" in address:
            scheme, _, rest = address.partition("://")
            address, slash, path = rest.partition("/")
            assert slash + path in routes()
            assert (scheme == "https") is ("PUNA_TLS_CERT" in service["environment"])
        host, port = split_host_port(address)
        listened = {
            split_host_port(service["environment"][one])
            for one in service["environment"]
            if one.endswith(("_LISTEN", "_HOST"))
        }
        assert {(host, port), ("0.0.0.0", port)} & listened, f"{file}: {name}"


def test_whoever_is_dialled_is_there() -> None:
    """Names of other services with the ports that those listen on."""
    all_services = services(MAIN)
    ports = {name: listeners(service) for name, service in all_services.items()} | {
        "redis": {6379},
        "prometheus": {9090},
    }
    found = 0
    for _, name, service in each(MAIN, *ADDITIONS):
        for one, value in service.get("environment", {}).items():
            for host, port in re.findall(r"([a-z0-9-]+):(\d+)", str(value)):
                if one.endswith("_LISTEN") or host not in all_services:
                    continue
                assert int(port) in ports[host], f"{name}: {one}"
                found += 1
        for one in ("PUNA_NODE_ADVERTISE", "PUNA_RUNNER_ADVERTISE"):
            if one in service.get("environment", {}):
                assert service["environment"][one].partition(":")[0] == name
    assert found > 10


@every_file
def test_only_what_should_be_is_published(file: str) -> None:
    published: dict[str, set[int]] = {}
    for name, service in document(file)["services"].items():
        for entry in service.get("ports", ()):
            address, _, port = entry.rsplit(":", 2)
            assert address in ("127.0.0.1", SAID["PRIVATE_ADDRESS"])
            published.setdefault(name, set()).add(int(port))
        role = role_of(services(file)[name])
        assert published.get(name, set()) <= listeners(services(file)[name]) or role is None
    assert published == PUBLISHED.get(file, {})


@every_file
def test_services_have_no_rights_and_have_limits(file: str) -> None:
    for name, service in services(file).items():
        where = f"{file}: {name}"
        assert service["read_only"] is True, where
        assert service["cap_drop"] == ["ALL"], where
        assert not {"cap_add", "privileged", "pid", "ipc", "userns_mode", "devices"} & service.keys(), where
        assert service["security_opt"] == ["no-new-privileges:true"], where
        user, group = service["user"].split(":")
        assert int(user) > 0, where
        assert int(group) > 0 or name == "grafana", where  # whose image gives its files to group 0
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"]), where
        assert isinstance(service["pids_limit"], int), where  # compose v1 does not read a number from a variable here
        assert float(service["cpus"]) > 0 or "cpuset" in service, where
        assert service["restart"] == "unless-stopped"
        assert service["logging"]["options"]["max-size"]
        assert not any("docker.sock" in str(volume) for volume in service.get("volumes", ()))
        assert service.get("network_mode") == ("host" if file == HOST else "none" if name == "trust" else None)


def test_images_of_others_have_a_version_and_starts_wait_for_health() -> None:
    for file, name, service in each(MAIN, HOST):
        image = service["image"]
        if not image.startswith("puna:"):
            assert re.search(r":v?\d+\.\d+\.\d+|@sha256:[0-9a-f]{64}$", image), image
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in services(file)[needed]
        if name in services(MAIN) and service.get("network_mode") != "host":
            assert service.get("depends_on") or name == "trust", name


def test_gpus_are_reserved_and_the_image_is_built_for_them() -> None:
    for _, name, service in each(MAIN, HOST):
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        if name != "host-nvidia":
            assert not devices
            continue
        assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
        arguments = service["build"]["args"]
        assert "-DGGML_CUDA=on" in arguments["LLAMA_CMAKE_ARGS"]
        assert "-DGGML_RPC=on" in arguments["LLAMA_CMAKE_ARGS"]
        assert set(arguments) <= declared_arguments()
        assert set(arguments["LLAMA_CMAKE_ARGS"].split()) == set(images()["cuda"]["args"]["LLAMA_CMAKE_ARGS"].split())
        for stage in ("BUILDER_IMAGE", "BASE_IMAGE"):
            assert arguments[stage] == images()["cuda"]["args"][stage]
        assert "utility" in service["environment"]["NVIDIA_DRIVER_CAPABILITIES"]


@every_file
def test_files_that_are_mounted_are_there(file: str) -> None:
    base = (ROOT / file).parent if file == HOST else ROOT
    whole = document(file)
    named = set(document(MAIN)["volumes"]) | set(whole.get("volumes") or ())
    for service in whole["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            made = "/".join(source.split("/")[:2])
            assert source in named or made in OPERATORS_OWN or (ROOT / source).is_dir(), source
        for source in service.get("env_file", ()):
            assert (base / source).is_file()
        if "build" in service:
            context = (base / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()
        for secret in service.get("secrets", ()):
            assert str(Path(whole["secrets"][secret["source"]]["file"]).parent) == "keys"


def test_each_service_has_the_certificate_of_its_role_and_no_other() -> None:
    main = services(MAIN)
    issued = main["trust"]["command"][1:]
    written = {volume.split(":")[0]: volume.split(":")[1] for volume in main["trust"]["volumes"]}
    assert {f"/trust/{role}" for role in (*issued, "redis")} | {"/trust"} == set(written.values())
    assert main["trust"]["healthcheck"]["test"][-1] == f"/trust/{issued[-1]}/tls.crt"
    for name, service in main.items():
        mounts = [volume.split(":") for volume in service.get("volumes", ()) if volume.split(":")[0] in written]
        if name in ("trust", "grafana"):
            continue
        ((volume, target, mode),) = mounts
        role = written[volume].removeprefix("/trust/")
        node = service.get("environment", {}).get("PUNA_NODE_ID")
        assert role == (f"node/{node}" if node else {"prometheus": "metrics"}.get(name, name))
        assert (target, mode) == ("/etc/puna/redis" if name == "redis" else TRUST, "ro")
        if role_of(service) is not None:
            assert service["environment"]["PUNA_TRUST"] == TRUST


def test_each_role_has_a_user_of_its_own_and_the_authority_is_in_the_group_of_all() -> None:
    main = {name: service for name, service in services(MAIN).items() if "image" in service}
    users: dict[str, set[str]] = {}
    for name, service in main.items():
        users.setdefault(service["user"], set()).add(name.partition("-")[0])
    assert all(len(roles) == 1 for roles in users.values()), users
    readers = {service["user"].partition(":")[2] for service in main.values() if TRUST in str(service.get("volumes"))}
    assert set(main["trust"]["group_add"]) == readers
    # With join.yml, discovery is the authority.
    assert services(f"{FOLDER}/join.yml")["discovery"]["user"] == main["trust"]["user"]


def test_the_image_has_the_directories_of_the_authority_so_that_volumes_have_their_owner() -> None:
    made = text_of("deploy/Dockerfile").partition("install -d")[2]
    for volume in services(MAIN)["trust"]["volumes"]:
        assert re.search(rf"\s{volume.partition(':/')[2]}[;\s]", made), volume


def test_audit_logs_lie_on_volumes_whose_directory_the_image_gives_to_their_user() -> None:
    logged = {}
    for _, name, service in each(MAIN, *ADDITIONS):
        if path := service.get("environment", {}).get("PUNA_AUDIT_LOG"):
            targets = [volume.split(":") for volume in service["volumes"] if volume.count(":") == 1]
            assert str(Path(path).parent) in [target for _, target in targets], name
            logged[name] = str(Path(path).parent).lstrip("/"), service["user"].partition(":")[0]
    assert logged.keys() == {"gateway", "discovery"}  # discovery with join.yml
    owners = {"10002": "puna-gateway", "10005": "puna-trust"}
    for directory, user in logged.values():
        made = re.search(rf"install -d -o {owners[user]} -g \S+ -m 0750[^;]*\s{directory}[;\s]", text_of(IMAGE))
        assert made, directory
    assert services(MAIN)["trust"]["user"].startswith(logged["discovery"][1])  # whose commands write there, too


def test_no_shipped_file_consents_to_plaintext_and_one_to_a_gateway_without_keys() -> None:
    consents: dict[str, set[str]] = {}
    for file, _, service in each():
        for name in ("PUNA_PLAINTEXT", "PUNA_OPEN_GATEWAY", "PUNA_INSECURE"):
            if name in service.get("environment", {}):
                consents.setdefault(file, set()).add(f"{name}={service['environment'][name]}")
    gateway = "PUNA_OPEN_GATEWAY="
    assert consents.pop(f"{FOLDER}/keys.yml") == {f"{gateway}0"}
    assert consents.pop(f"{FOLDER}/open.yml") == {f"{gateway}1"}
    assert all(value == {f"{gateway}127.0.0.1"} for value in consents.values())
    assert f"{gateway.rstrip('=')}: ${{PUBLISH_ADDRESS:-127.0.0.1}}" in text_of(MAIN)


def test_hosts_have_no_network_in_common_with_redis() -> None:
    main = services(MAIN)
    members: dict[str, set[str]] = {}
    for name, service in main.items():
        for network in service.get("networks", ()):
            members.setdefault(network, set()).add(name)
    hosts = {name for name in main if name.startswith("host")}
    assert members == {
        "edge": {"gateway"},
        "control": {"gateway", "scheduler", "discovery", "redis"},
        "nodes": {"gateway", "scheduler", "discovery", *hosts},
        "monitoring": {"gateway", "scheduler", "discovery", "prometheus", "grafana", *hosts},
    }
    assert set(document(MAIN)["networks"]) == set(members)
    assert document(MAIN)["networks"]["control"] == {"internal": True}


@pytest.mark.parametrize("role", ["gateway", "scheduler"])
def test_redis_is_used_as_the_user_of_the_role(role: str) -> None:
    service = services(f"{FOLDER}/keys.yml" if role == "gateway" else MAIN)[role]
    url = urlsplit(service["environment"]["PUNA_REDIS_URL"])
    assert (url.username, url.hostname, url.port) == (role, "redis", 6379)
    assert parse_qs(url.query) == {"password_file": [f"{TRUST}/{PASSWORD}"]}
    assert f"/etc/puna/{USERS}" in services(MAIN)["redis"]["command"]


def test_prometheus_asks_services_that_are_there_on_the_ports_that_they_open() -> None:
    all_services = services(MAIN)
    for config in ("prometheus.yml", "tls.yml"):
        scheme = "https" if config == "tls.yml" else "http"
        for job in yaml.safe_load((ROOT / "deploy" / "prometheus" / config).read_text(encoding="utf-8"))[
            "scrape_configs"
        ]:
            assert (job["scheme"], job["tls_config"]["cert_file"]) == ("https", f"{TRUST}/tls.crt")
            for discovery in job.get("dns_sd_configs", ()):
                for name in discovery["names"]:
                    assert job["tls_config"]["server_name"] in RoleName(Role(name)).host_names
                    assert discovery["port"] == split_host_port(all_services[name]["environment"][METRICS])[1]
            for discovery in job.get("http_sd_configs", ()):
                found = re.fullmatch(r"(\w+)://([\w-]+):(\d+)(/.*)", discovery["url"])
                assert found is not None
                assert found[1] == scheme
                assert int(found[3]) in listeners(all_services[found[2]])
                assert found[4] in routes()
                assert (ROOT / "deploy" / "prometheus" / discovery["authorization"]["credentials_file"]).is_file()


def test_prometheus_with_tls_differs_in_nothing_else() -> None:
    plain, secured = (yaml.safe_load(text_of(f"deploy/prometheus/{name}")) for name in ("prometheus.yml", "tls.yml"))
    for job in secured["scrape_configs"]:
        for discovery in job.get("http_sd_configs", ()):
            assert discovery.pop("tls_config") == {"insecure_skip_verify": True}
            discovery["url"] = discovery["url"].replace("https://", "http://")
    assert secured == plain
    main, tls = (services(file)["prometheus"]["command"] for file in (MAIN, f"{FOLDER}/tls.yml"))
    assert [word.replace("prometheus.yml", "tls.yml") for word in main] == tls


def test_grafana_finds_its_boards_and_its_prometheus() -> None:
    """The parts of Grafana's configuration that can be checked without its image."""
    grafana = services(MAIN)["grafana"]
    mounts = dict(volume.split(":")[1::-1] for volume in grafana["volumes"])
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    assert (ROOT / mounts["/etc/grafana/provisioning"]).resolve() == provisioning
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "puna.yml").read_text(encoding="utf-8"))["providers"]
    boards = ROOT / mounts[provider["options"]["path"]]
    titles = {json.loads(path.read_text(encoding="utf-8"))["title"] for path in boards.glob("*.json")}
    assert len(titles) == 3
    text = (provisioning / "datasources" / "puna.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{?(\w+)\}?", text)) == {"PROMETHEUS_URL"} <= grafana["environment"].keys()
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"


def test_the_example_names_every_variable_and_its_default() -> None:
    text = text_of(f"{FOLDER}/example.env")
    told = dict(re.findall(r"^#?([A-Z][A-Z0-9_]+)=(.*)$", text, re.MULTILINE))
    read = set().union(*(variables(file) for file in FILES))
    assert told.keys() - READ_BY_COMPOSE == read
    for file in FILES:
        for name, default in re.findall(r"\$\{([A-Z0-9_]+):-([^{}]*)\}", text_of(file)):
            assert told[name].removeprefix(f"{FOLDER}/") == default.removeprefix(f"{FOLDER}/"), f"{file}: {name}"


def test_each_image_comes_from_a_variable_and_the_page_lists_it() -> None:
    page = text_of("deploy/README.md").partition("**Pinning.**")[2].partition("\n**")[0]
    named = set(re.findall(r"`([A-Z_]*IMAGE)`", page))
    read: set[str] = set()
    for file in FILES:
        for value in re.findall(r"^\s*(?:image|BASE_IMAGE|BUILDER_IMAGE): (.+)$", text_of(file), re.MULTILINE):
            read |= set(re.findall(r"^\$\{([A-Z_]*IMAGE):-", value)) or {value}
    assert named == read
    stages = re.findall(r"^FROM (\S+)", text_of("deploy/Dockerfile"), re.MULTILINE)
    assert stages == ["${BUILDER_IMAGE}", "${BASE_IMAGE}"]


def test_each_image_of_others_is_named_by_one_digest() -> None:
    """Whatever is pulled is that image, in compose, in the bake file and by hand."""
    shipped = [*(text_of(file) for file in FILES), text_of("deploy/Dockerfile"), text_of("deploy/docker-bake.json")]
    image = r"(?:_IMAGE(?::-|=|\": \")|^\s*image: )([a-z][^\s\"}]*)"
    pulled = {
        name for text in shipped for name in re.findall(image, text, re.MULTILINE) if not name.startswith("puna:")
    }
    digests: dict[str, set[str]] = {}
    for name in pulled:
        tag, _, digest = name.partition("@")
        digests.setdefault(tag, set()).add(digest)
    assert len(digests) >= 7
    for tag, found in digests.items():
        (digest,) = found
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest), tag


@pytest.mark.parametrize(
    "files", [(MAIN,), *((MAIN, one) for one in ADDITIONS), (MAIN, *ADDITIONS), (HOST,)], ids="+".join
)
@pytest.mark.parametrize("program", [("docker-compose",), ("docker", "compose")], ids=" ".join)
def test_compose_accepts_every_combination(program: tuple[str, ...], files: tuple[str, ...]) -> None:
    """The rendered configurations stay in build/artifacts."""
    environment = {name: value for name, value in os.environ.items() if name in ("HOME", "PATH", "LANG")}
    if not _answers([*program, "version"], environment):
        pytest.skip(f"{' '.join(program)} is not installed (make deps-system brings docker-compose)")
    words = [word for file in files for word in ("--file", file)]
    done = subprocess.run(
        [*program, *words, "config"],
        cwd=ROOT,
        env=environment | SAID | {"COMPOSE_PROFILES": "cpu,nvidia,second-host,monitoring"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    folder = ARTIFACTS / "-".join(program)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{'+'.join(Path(file).stem for file in files)}.yaml").write_text(done.stdout, encoding="utf-8")
    shown = yaml.safe_load(done.stdout)["services"]
    expected = set().union(*(services(file) for file in files))
    assert set(shown) == expected


def _answers(command: list[str], environment: Mapping[str, str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60).returncode == 0


def images() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(text_of("deploy/docker-bake.json"))["target"]
    return found


def declared_arguments() -> set[str]:
    return set(re.findall(r"^ARG (\w+)", text_of("deploy/Dockerfile"), re.MULTILINE))


def test_there_is_an_image_for_each_kind_of_engine() -> None:
    assert set(images()) == {"cpu", "cuda", "rocm", "vulkan"}
    for name, image in images().items():
        assert image["tags"] == [f"puna:{name}"]
        arguments = image.get("args", {})
        assert set(arguments) <= declared_arguments()
        flags = arguments.get("LLAMA_CMAKE_ARGS", "").split()
        assert not flags or {"-DGGML_RPC=on", "-DGGML_NATIVE=off"} <= set(flags)
        backend = {"cuda": "CUDA", "rocm": "HIP", "vulkan": "VULKAN"}.get(name)
        assert {flag for flag in flags if flag.startswith(("-DGGML_CUDA", "-DGGML_HIP", "-DGGML_VULKAN"))} == (
            {f"-DGGML_{backend}=on"} if backend else set()
        )


def test_the_image_for_cuda_runs_on_cards_from_turing_to_blackwell() -> None:
    arguments = images()["cuda"]["args"]
    (architectures,) = re.findall(r"CUDA_ARCHITECTURES=(\S+)", arguments["LLAMA_CMAKE_ARGS"])
    assert {"75", "80", "86", "89", "90", "100", "120"} == set(architectures.split(";"))
    toolkits = {arguments[name].split(":")[1].split("-")[0] for name in ("BUILDER_IMAGE", "BASE_IMAGE")}
    (toolkit,) = toolkits
    assert tuple(map(int, toolkit.split("."))) >= (12, 8), "older ones have no sm_100 and sm_120"

"""Output of kustomize: valid, as locked down as it says, and true to the code's settings, ports and probes."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from common.network import split_host_port
from common.redis.users import PASSWORD, RULES
from common.settings import KNOWN_NAMES
from common.trust.roles import Role, RoleName
from discovery.settings import DiscoverySettings
from gateway.http.endpoint.service import Service
from gateway.http.routes import make_routes
from gateway.settings import GatewaySettings
from runner.host.settings import HostSettings
from scheduler.settings import SchedulerSettings
from tests.integration.deploy.kubernetes import MANIFESTS, OVERLAYS, Object, containers, pods, rendered, settings_of

SETTINGS: Mapping[str, type[Any]] = {
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "discovery": DiscoverySettings,
    "host": HostSettings,
}
# The settings that name a listener, and the container port that belongs to it.
LISTENERS = {
    "PUNA_HOST": "http",
    "PUNA_GRPC_HOST": "grpc",
    "PUNA_SCHEDULER_LISTEN": "grpc",
    "PUNA_DISCOVERY_LISTEN": "grpc",
    "PUNA_NODE_LISTEN": "grpc",
    "PUNA_TUNNEL_LISTEN": "tunnel",
    "PUNA_METRICS_LISTEN": "metrics",
}
CUSTOM = {
    "ServiceMonitor",
    "ScrapeConfig",
    "Certificate",
    "ClusterIssuer",
}  # schemas come with their operators

every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def _objects(overlay: str) -> tuple[Object, ...]:
    return rendered(f"overlays/{overlay}")


def test_there_is_an_overlay_for_each_kind_of_cluster() -> None:
    assert {"cpu", "nvidia", "redis-sentinel"} <= set(OVERLAYS)


@every_overlay
def test_every_object_is_valid_by_a_current_schema(overlay: str) -> None:
    objects = [one for one in _objects(overlay) if one["kind"] not in CUSTOM]
    assert objects
    for one in objects:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


@every_overlay
def test_names_of_settings_exist_and_their_values_are_accepted(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = _objects(overlay)
    seen = set()
    for owner, pod in pods(objects):
        for container in pod["spec"]["containers"]:
            values = settings_of(container, objects)
            for name in values:
                assert not name.startswith("PUNA_") or name in KNOWN_NAMES, f"{owner}: {name}"
            if container["name"] not in SETTINGS:
                continue
            with monkeypatch.context() as patch:
                for name, value in values.items():
                    patch.setenv(name, _as_the_kubelet_writes(value))
                settings = SETTINGS[container["name"]].load()
            fields = {f"PUNA_{name.upper()}" for name in type(settings).model_fields}
            unused = {name for name in values if name.startswith("PUNA_")} - fields - _shared(objects)
            assert not unused, f"{owner} reads none of {sorted(unused)}"
            seen.add(container["name"])
    assert seen == set(SETTINGS)


def _as_the_kubelet_writes(value: str) -> str:
    return value.replace("$(POD_IP)", "10.0.0.7").replace("$(NODE_NAME)", "node-7")


def _shared(objects: tuple[Object, ...]) -> set[str]:
    """One map for every role: each accepts the names of the others."""
    return {name for one in objects if one["kind"] == "ConfigMap" for name in one.get("data", {})}


@every_overlay
def test_ports_are_those_that_the_settings_open_and_services_reach_them(overlay: str) -> None:
    objects = _objects(overlay)
    for owner, pod in pods(objects):
        for container in pod["spec"]["containers"]:
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            opened = {
                LISTENERS[name]: split_host_port(value)[1]
                for name, value in settings_of(container, objects).items()
                if name in LISTENERS
            }
            if container["name"] in SETTINGS:
                assert ports == opened, owner
    for service in (one for one in objects if one["kind"] == "Service"):
        wanted = service["spec"]["selector"].items()
        matching = [pod for _, pod in pods(objects) if wanted <= pod["metadata"]["labels"].items()]
        assert matching, f"service {service['metadata']['name']} selects nothing"
        names = {port["name"] for pod in matching for one in containers(pod) for port in one.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


@every_overlay
def test_probes_ask_what_is_there(overlay: str) -> None:
    nothing = cast("Any", None)
    service = Service(inference=nothing, scheduler=nothing, stores=nothing, version="0")
    paths = {route.path for route in make_routes(service)}
    for owner, pod in pods(_objects(overlay)):
        for container in pod["spec"]["containers"]:
            names = {port["name"] for port in container["ports"]}
            numbers = {port["containerPort"] for port in container["ports"]}
            for kind in ("startupProbe", "livenessProbe"):
                assert kind in container, f"{owner}: {container['name']} has no {kind}"
            for probe in (container[key] for key in container if key.endswith("Probe")):
                if "httpGet" in probe:
                    assert probe["httpGet"]["path"] in paths
                    assert probe["httpGet"]["port"] in names
                elif "exec" in probe:
                    # With the certificate of the pod, which the kubelet has not.
                    assert probe["exec"]["command"][:3] == ["python", "-m", "common.healthcheck"]
                    assert split_host_port(probe["exec"]["command"][3])[1] in numbers
                    assert probe["timeoutSeconds"] >= 10
                else:
                    assert probe["tcpSocket"]["port"] in names


@every_overlay
def test_pods_are_as_restricted_as_pod_security_asks(overlay: str) -> None:
    """Everything of "restricted" but the disk of a host, and the one step that hands that disk over."""
    for owner, pod in pods(_objects(overlay)):
        assert pod["spec"]["automountServiceAccountToken"] is False, owner
        context = pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        kinds = {kind for volume in pod["spec"].get("volumes", []) for kind in volume if kind != "name"}
        is_host = owner == "DaemonSet host"
        assert kinds <= {"emptyDir", "configMap", "secret", *(["hostPath"] if is_host else [])}, owner
        for container in containers(pod):
            inner = container["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False
            assert inner["readOnlyRootFilesystem"] is True
            assert inner["capabilities"]["drop"] == ["ALL"]
            if container["name"] == "own-directory":
                assert inner["capabilities"]["add"] == ["CHOWN"]
                continue
            assert "add" not in inner["capabilities"]
            assert inner.get("runAsUser", context["runAsUser"]) != 0
            assert "memory" in container["resources"]["limits"], f"{owner}: {container['name']}"


@every_overlay
def test_each_role_has_the_user_that_the_image_has_for_it(overlay: str) -> None:
    names = re.search(r"for name in (puna .*?); do", (MANIFESTS.parent / "Dockerfile").read_text())
    assert names is not None
    users = {name: 10001 + place for place, name in enumerate(names[1].split())}
    for owner, pod in pods(_objects(overlay)):
        role = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        user = users["puna" if role == "host" else f"puna-{role}"]
        context = pod["spec"]["securityContext"]
        assert {context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {user}, owner


@every_overlay
def test_whoever_serves_alone_is_guarded_against_evictions(overlay: str) -> None:
    objects = _objects(overlay)
    budgets = [
        one["spec"]["selector"]["matchLabels"].items() for one in objects if one["kind"] == "PodDisruptionBudget"
    ]
    for one in objects:
        if one["kind"] != "Deployment":
            continue
        labels = one["spec"]["template"]["metadata"]["labels"].items()
        assert any(budget <= labels for budget in budgets), one["metadata"]["name"]
        assert one["spec"]["replicas"] > 1
        assert "podAntiAffinity" in one["spec"]["template"]["spec"]["affinity"]


@every_overlay
def test_network_policies_refuse_what_they_do_not_name(overlay: str) -> None:
    objects = _objects(overlay)
    policies = [one for one in objects if one["kind"] == "NetworkPolicy"]
    namespaces = {one["metadata"]["name"] for one in objects if one["kind"] == "Namespace"}
    closed = {
        one["metadata"]["namespace"]
        for one in policies
        if one["spec"]["podSelector"] == {}
        and set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and not one["spec"].get("ingress")
        and not one["spec"].get("egress")
    }
    assert closed == namespaces
    dialled = {
        port["port"] for one in policies for rule in one["spec"].get("egress", []) for port in rule.get("ports", [])
    }
    assert {7601, 7602, 7603, 7604, 6379} <= dialled


@every_overlay
def test_whoever_dials_runners_may_reach_ports_that_the_system_chose(overlay: str) -> None:
    """Gateways stream from them, and a scheduler asks them itself when their host is silent."""
    policies = [one for one in _objects(overlay) if one["kind"] == "NetworkPolicy"]
    by_name = {(one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"] for one in policies}
    for role in ("gateway", "scheduler"):
        out = [rule for rule in by_name["puna", role]["egress"] if "namespaceSelector" in rule["to"][0]]
        assert len(out) == 1
        assert "ports" not in out[0], role
    open_to = [rule["from"][0] for rule in by_name["puna-nodes", "host"]["ingress"] if "ports" not in rule]
    (expression,) = next(one["podSelector"]["matchExpressions"] for one in open_to if "namespaceSelector" in one)
    assert set(expression["values"]) == {"gateway", "scheduler"}


@every_overlay
def test_what_others_are_told_to_dial_is_a_service_with_that_port(overlay: str) -> None:
    objects = _objects(overlay)
    services = {
        f"{one['metadata']['name']}.{one['metadata']['namespace']}.svc": {port["port"] for port in one["spec"]["ports"]}
        for one in objects
        if one["kind"] == "Service"
    }
    settings = next(one for one in objects if one["kind"] == "ConfigMap" and "puna-settings" in one["metadata"]["name"])
    for name in ("PUNA_DISCOVERY_ADDRESS", "PUNA_SCHEDULER_ADDRESS"):
        host, port = split_host_port(settings["data"][name])
        assert port in services[host]


@every_overlay
def test_each_role_has_its_certificate_where_it_looks(overlay: str) -> None:
    objects = _objects(overlay)
    for owner, pod in pods(objects):
        role = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        if role not in SETTINGS:
            continue
        container = next(one for one in pod["spec"]["containers"] if one["name"] == role)
        where = settings_of(container, objects)["PUNA_TRUST"]
        mount = next(one for one in container["volumeMounts"] if one["mountPath"] == where)
        volume = next(one for one in pod["spec"]["volumes"] if one["name"] == mount["name"])
        assert mount["readOnly"] is True
        if role == "host":
            assert volume["hostPath"] == {"path": "/var/lib/puna/trust", "type": "Directory"}
        else:
            assert volume["secret"] == {"secretName": f"puna-trust-{role}", "defaultMode": 0o440}, owner


@every_overlay
def test_nothing_consents_to_plaintext_or_to_a_gateway_without_keys(overlay: str) -> None:
    objects = _objects(overlay)
    for _, pod in pods(objects):
        for container in pod["spec"]["containers"]:
            assert not {"PUNA_PLAINTEXT", "PUNA_OPEN_GATEWAY", "PUNA_INSECURE"} & settings_of(container, objects).keys()


@every_overlay
def test_redis_has_a_user_for_each_role_and_hosts_have_none(overlay: str) -> None:
    objects = _objects(overlay)
    users = {}
    for _, pod in pods(objects):
        role = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        secrets = {
            mount["mountPath"]: volume["secret"]["secretName"]
            for container in pod["spec"]["containers"]
            for mount in container["volumeMounts"]
            for volume in pod["spec"]["volumes"]
            if volume["name"] == mount["name"] and "secret" in volume and "redis" in volume["secret"]["secretName"]
        }
        if secrets:
            users[role] = secrets
        url = next((settings_of(one, objects).get("PUNA_REDIS_URL") for one in pod["spec"]["containers"]), None)
        assert (url is not None) == (role in RULES)
        if url is not None:
            assert urlsplit(url).netloc.partition("@")[0] == role
            assert urlsplit(url).query == f"password_file=/etc/puna/redis/{PASSWORD}"
    folder = "/etc/puna/redis"
    assert users["redis"][folder] == "puna-redis-users"
    assert {role: secrets for role, secrets in users.items() if role != "redis"} == {
        role: {folder: f"puna-redis-{role}"} for role in RULES
    }


def test_cert_manager_issues_names_that_the_code_compares() -> None:
    component = MANIFESTS / "components" / "cert-manager"
    for certificate in yaml.safe_load_all((component / "certificates.yaml").read_text()):
        role = RoleName(Role(certificate["metadata"]["name"].removeprefix("puna-trust-")))
        assert certificate["spec"]["uris"] == [role.uri]
        assert tuple(certificate["spec"]["dnsNames"]) == role.host_names
        assert certificate["spec"]["secretName"] == f"puna-trust-{role}"


def test_the_gateway_asks_for_keys_and_its_secret_is_mounted_where_it_looks() -> None:
    gateway = next(pod for owner, pod in pods(_objects("cpu")) if owner == "Deployment gateway")
    container = gateway["spec"]["containers"][0]
    keys = next(entry["value"] for entry in container["env"] if entry["name"] == "PUNA_API_KEYS_FILE")
    mount = next(one for one in container["volumeMounts"] if one["name"] == "keys")
    assert keys.startswith(mount["mountPath"] + "/")
    volume = next(one for one in gateway["spec"]["volumes"] if one["name"] == "keys")
    assert volume["secret"].get("optional") is not True


@every_overlay
def test_gateways_write_their_audit_log_to_a_volume(overlay: str) -> None:
    gateway = next(pod for owner, pod in pods(_objects(overlay)) if owner == "Deployment gateway")
    container = gateway["spec"]["containers"][0]
    log = next(entry["value"] for entry in container["env"] if entry["name"] == "PUNA_AUDIT_LOG")
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert not mounts[str(Path(log).parent)].get("readOnly")


@pytest.mark.parametrize(
    "component", sorted(path.parent.name for path in MANIFESTS.glob("components/*/kustomization.yaml"))
)
def test_components_can_be_added_to_an_overlay(component: str, tmp_path: Path) -> None:
    layer = MANIFESTS / "overlays" / "cpu"
    folder = tmp_path / "layer"
    folder.mkdir()
    text = (
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{_relative(folder, layer)}]\n"
        f"components: [{_relative(folder, MANIFESTS / 'components' / component)}]\n"
    )
    (folder / "kustomization.yaml").write_text(text)
    objects = rendered(_relative(MANIFESTS, folder), name=f"overlays-cpu+{component}")
    for one in objects:
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)
    assert objects != _objects("cpu")


def _relative(start: Path, end: Path) -> str:
    return os.path.relpath(end, start)


def test_hosts_with_gpus_need_the_device_plugin_alone() -> None:
    """It offers the resource `nvidia.com/gpu`; labels and runtime classes come from other parts of NVIDIA's."""
    hosts = [one["spec"]["template"]["spec"] for one in _objects("nvidia") if one["kind"] == "DaemonSet"]
    assert hosts
    for pod in hosts:
        assert pod["nodeSelector"] == {"puna.dev/host": "true"}, "a label that operators set themselves"
        assert "affinity" not in pod
        assert "runtimeClassName" not in pod
        (host,) = (one for one in pod["containers"] if one["name"] == "host")
        assert host["resources"]["limits"]["nvidia.com/gpu"] == host["resources"]["requests"]["nvidia.com/gpu"] == 1

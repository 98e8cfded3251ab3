"""Metrics pages that other machines reach: certificates of scrapers pass, those of other roles and strangers do not."""

import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from common.errors import StartupError
from common.metrics_page import serve_metrics
from common.network import split_host_port
from tests.prometheus import Prometheus, run_prometheus
from tests.trust import Cluster, acting_as
from tests.waiting import wait_until

FOR_ALL = "0.0.0.0:0"


@pytest.fixture
def authority(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "trust")


@pytest.fixture
def page(authority: Cluster) -> Iterator[str]:
    with acting_as(authority.identity("discovery")):
        port = split_host_port(serve_metrics(FOR_ALL, service="discovery"))[1]
        yield f"https://127.0.0.1:{port}/metrics"


def read(page: str, accepted: Path, shown: Path | None = None) -> httpx.Response:
    """Read a page as Prometheus does with `tls_config`."""
    context = ssl.create_default_context(cafile=str(accepted / "ca.crt"))
    if shown is not None:
        context.load_cert_chain(shown / "tls.crt", shown / "tls.key")
    with httpx.Client(verify=context) as client:
        return client.get(page, extensions={"sni_hostname": "discovery.puna.internal"})


@pytest.mark.parametrize("role", ["metrics", "operator"])
def test_a_scraper_reads_it(authority: Cluster, page: str, role: str) -> None:
    own = authority.directory(role)
    assert "puna_build_info{" in read(page, own, own).text


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (make deps-system)")
@pytest.mark.parametrize("role", ["discovery", "node/a"])
def test_prometheus_verifies_the_page_of_a_role(authority: Cluster, tmp_path: Path, role: str) -> None:
    files = authority.directory("metrics")
    with acting_as(authority.identity(role)):
        port = split_host_port(serve_metrics(FOR_ALL, service="any"))[1]
    tls = {
        "ca_file": str(files / "ca.crt"),
        "cert_file": str(files / "tls.crt"),
        "key_file": str(files / "tls.key"),
        "server_name": f"{role.partition('/')[0]}.puna.internal",
    }
    target = {"targets": [f"127.0.0.1:{port}"]}
    job = {"job_name": "page", "scheme": "https", "tls_config": tls, "static_configs": [target]}
    prometheus = run_prometheus(tmp_path, {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]})
    try:
        wait_until(lambda: _scraped(prometheus), deadline_s=20, what="the page is scraped")
        (found,) = prometheus.get("targets")["activeTargets"]
        assert (found["health"], found["lastError"]) == ("up", "")
    finally:
        prometheus.stop()


def _scraped(prometheus: Prometheus) -> bool:
    return any(one["health"] != "unknown" for one in prometheus.get("targets")["activeTargets"])


@pytest.mark.parametrize("role", ["node/a", "gateway", "scheduler", "discovery"])
def test_the_certificate_of_another_role_is_refused(authority: Cluster, page: str, role: str) -> None:
    own = authority.directory(role)
    answer = read(page, own, own)
    assert answer.status_code == 403
    assert "puna_build_info" not in answer.text


def test_no_certificate_and_one_of_another_cluster_are_refused(authority: Cluster, page: str, tmp_path: Path) -> None:
    accepted = authority.directory("metrics")
    with pytest.raises(httpx.TransportError):
        read(page, accepted)
    with pytest.raises(httpx.TransportError):
        read(page, accepted, Cluster(tmp_path / "other").directory("metrics"))
    with pytest.raises(httpx.TransportError):
        httpx.get(page.replace("https", "http"))


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    authority = Cluster(tmp_path / "trust")
    identity = authority.identity("discovery")
    own = authority.directory("metrics")
    with acting_as(identity):
        port = split_host_port(serve_metrics(FOR_ALL, service="discovery"))[1]
        before = serial_at(port)
        authority.directory("discovery")
        identity._looked_at_s = 0.0  # it looks once a second
        assert serial_at(port) != before
        assert read(f"https://127.0.0.1:{port}/metrics", own, own).status_code == 200


def serial_at(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_without_a_certificate_of_the_cluster_only_this_machine_reads_it() -> None:
    with acting_as(None):
        with pytest.raises(StartupError, match="PUNA_TRUST"):
            serve_metrics(FOR_ALL, service="discovery")
        address = serve_metrics("127.0.0.1:0", service="discovery")
        assert httpx.get(f"http://{address}/metrics").status_code == 200
        assert serve_metrics(FOR_ALL, service="discovery", plaintext=True)


def test_a_client_that_says_nothing_delays_no_other(authority: Cluster, page: str) -> None:

    own = authority.directory("metrics")
    port = httpx.URL(page).port or 0
    with socket.create_connection(("127.0.0.1", port)):
        assert read(page, own, own).status_code == 200


def test_a_confined_process_has_such_a_page(authority: Cluster) -> None:
    """As a runner: it reads no file any more when a certificate is renewed."""
    program = (
        "import sys; from pathlib import Path; from common.metrics_page import _context_of\n"
        "from common.trust.identity import Identity; from common.sandbox.confinement import Limits, confine\n"
        "material = Identity(Path(sys.argv[1])).material(); confine([], Limits()); _context_of(material); print('made')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(authority.directory("node/a"))], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("made\n", "")

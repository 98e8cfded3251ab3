"""Browser origins that may use a gateway."""

from dataclasses import replace

import pytest

from common.errors import PermissionDenied
from gateway.core.dispatch.browser import BrowserPolicy

LOOPBACK = BrowserPolicy(loopback_only=True, machine_name="Workstation", origins=("https://ui.example",))
PUBLIC = BrowserPolicy(loopback_only=False, machine_name="Workstation")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:11434",
        "x.localhost",
        "workstation.local",
        "ui.example",
        "host.docker.internal:1",
        "workstation:11434",
        "127.0.0.1:11434",
        "127.9.9.9",
        "[::1]:11434",
        "192.168.1.5",
        "10.0.0.1",
    ],
)
def test_names_and_addresses_of_this_machine_pass(host: str) -> None:
    LOOPBACK.check_host([host])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.local",
        "evil.internal",
        "gateway",
        "8.8.8.8",
        "",
        "x/health?",
        "127.0.0.1:80:80",
        "[::1",
        "local",
    ],
)
def test_rebound_names_are_refused(host: str) -> None:
    with pytest.raises(PermissionDenied):
        LOOPBACK.check_host([host])


def test_two_host_headers_are_refused_everywhere() -> None:
    for policy in (LOOPBACK, PUBLIC):
        with pytest.raises(PermissionDenied):
            policy.check_host(["localhost", "localhost"])


@pytest.mark.parametrize(
    "host", ["gateway:11434", "8.8.8.8:11434", "[2001:db8::1]", "host.docker.internal", "localhost"]
)
def test_a_listener_that_others_reach_takes_addresses_and_names_of_no_public_dns(host: str) -> None:
    PUBLIC.check_host([host])


@pytest.mark.parametrize(
    "host", ["evil.example", "gateway.evil.example", "evil.local", "gateway.", "", "127.0.0.1:80:80"]
)
def test_a_listener_that_others_reach_takes_no_name_that_can_be_rebound(host: str) -> None:
    with pytest.raises(PermissionDenied, match="PUNA_ORIGINS"):
        PUBLIC.check_host([host])


def test_keys_and_certificates_make_any_name_safe() -> None:
    replace(PUBLIC, is_proven=True).check_host(["gateway.example"])
    PUBLIC.check_host([])  # no browser


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:8080", True),
        ("https://ui.example", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
        ("file://localhost", False),
        ("", False),
    ],
)
def test_pages_of_this_machine_and_configured_ones_may_call(origin: str, allowed: bool) -> None:
    assert LOOPBACK.allows_origin(origin) is allowed

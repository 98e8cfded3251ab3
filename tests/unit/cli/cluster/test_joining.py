"""Certificates of one machine's processes: their directories, and their renewal by `puna up`."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.cluster import joining
from cli.cluster.joining import SPREAD_S, identity_directory, renew_certificates
from common.audit.acts import NO_ACT_LOG
from common.startup_error import StartupError
from common.trust.authority import Authority
from common.trust.certificates import LIFE_S, read_facts
from common.trust.roles import Role, parse_role
from tests.waiting import until

USER = 65534
GATEWAY = parse_role("gateway")


@pytest.mark.parametrize("role", [Role.GATEWAY, Role.OPERATOR])
def test_a_role_without_ids_has_one_directory_whatever_the_node_is_called(tmp_path: Path, role: Role) -> None:
    assert identity_directory(tmp_path, role, "a") == identity_directory(tmp_path, role) == tmp_path / role


def test_a_node_has_the_directory_of_its_configured_id(tmp_path: Path) -> None:
    assert identity_directory(tmp_path, Role.NODE, "a") == tmp_path / "node" / "a"


@pytest.fixture
def trust() -> Iterator[Path]:
    """An authority, and a certificate that is due, of a user whom the modes of files bind."""
    directory = Path(tempfile.mkdtemp(prefix="puna-trust-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(directory, USER, USER)
        os.setegid(USER)
        os.seteuid(USER)
    try:
        authority = Authority(directory, wall_unix_s=lambda: time.time() - LIFE_S * 0.6)
        authority.create()
        authority.issue(GATEWAY)
        before_s = time.time() - SPREAD_S - 60.0
        os.utime(directory / "ca" / "ca.crt", (before_s, before_s))
        yield directory
    finally:
        if is_root:
            os.seteuid(0)
            os.setegid(0)
        shutil.rmtree(directory)


UNREADABLE = pytest.mark.parametrize("name", ["ca/ca.key", "ca/ca.crt", "ca", "gateway/tls.crt"])


@UNREADABLE
def test_a_file_of_the_authority_that_may_not_be_read_is_one_line_that_names_it(trust: Path, name: str) -> None:
    (trust / name).chmod(0)
    with pytest.raises(StartupError) as refused:
        Authority(trust).renew()
    (trust / name).chmod(0o700)
    assert str(refused.value).startswith(f"{trust / name}")
    assert str(refused.value).endswith(": Permission denied")


@UNREADABLE
async def test_a_renewal_that_failed_is_tried_again(trust: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_RENEWAL_INTERVAL_S", 0.0)
    (trust / name).chmod(0)
    warnings: list[str] = []
    renewal = asyncio.create_task(renew_certificates(trust, NO_ACT_LOG, warnings.append))
    try:
        await until(lambda: len(warnings) > 1 or renewal.done(), what="it says so each time")
        (trust / name).chmod(0o700)
        certificate = trust / "gateway" / "tls.crt"
        await until(
            lambda: renewal.done() or read_facts(certificate.read_bytes()).renew_at_unix_s > time.time(),
            what="the certificate is renewed",
        )
        assert not renewal.done()
    finally:
        renewal.cancel()
    assert warnings[0].startswith("certificates are not renewed: ")
    assert "Permission denied" in warnings[0]

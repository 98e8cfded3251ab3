"""Names, dates and files of certificates."""

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

import common.trust.authority as authority_module
from common.startup_error import StartupError
from common.trust.authority import Authority
from common.trust.certificates import LIFE_S, BadCertificate, KeyPair, check_pair, issue, make_authority, read_facts
from common.trust.identity import Identity
from common.trust.roles import Role, RoleName, parse_role
from tests.certificates import write_certificate
from tests.trust import acting_as

NOW_S = 1_800_000_000.0
DAY_S = 86_400.0
GROUP = 54321  # of no process
NODE = RoleName(Role.NODE, "a.b_C-1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root",
        "node",
        "node/",
        "node/a/b",
        "node/-a",
        "gateway/",
        "gateway/a",
        "Gateway",
        "runner/p",
        "runner/a/b/p",
    ],
)
def test_what_is_no_role_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"role|id"):
        parse_role(text)


@pytest.mark.parametrize("name", [RoleName(Role.GATEWAY), NODE, RoleName(Role.RUNNER, "a.b_C-1/" + "p" * 63)])
def test_a_certificate_names_its_holder_and_is_renewed_at_half_of_its_life(name: RoleName) -> None:
    assert parse_role(str(name)) == name
    authority = make_authority(NOW_S)
    facts = check_pair(issue(authority, name, now_unix_s=NOW_S), authority.certificate, now_unix_s=NOW_S)
    assert facts.name == name
    assert (facts.valid_to_unix_s, facts.renew_at_unix_s) == (NOW_S + LIFE_S, NOW_S + LIFE_S / 2)


@pytest.mark.parametrize(
    ("clock_s", "text"),
    [(NOW_S + DAY_S + 1, "expired at 2027-01-16"), (NOW_S - DAY_S, "set the clock")],
)
def test_a_clock_that_is_a_day_off_is_named(clock_s: float, text: str) -> None:
    authority = make_authority(NOW_S)
    with pytest.raises(BadCertificate, match=text):
        check_pair(issue(authority, NODE, now_unix_s=NOW_S), authority.certificate, now_unix_s=clock_s)


def test_a_certificate_of_another_cluster_is_refused() -> None:
    authority, other = make_authority(NOW_S), make_authority(NOW_S)
    with pytest.raises(BadCertificate, match="another cluster"):
        check_pair(issue(authority, NODE, now_unix_s=NOW_S), other.certificate, now_unix_s=NOW_S)


def test_a_certificate_without_a_role_is_refused(tmp_path: Path) -> None:
    chain, _ = write_certificate(tmp_path)
    with pytest.raises(BadCertificate, match="names no role"):
        read_facts(chain.read_bytes())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "trust")
    made.create()
    return made


def test_files_are_private_and_an_authority_is_not_made_twice(authority: Authority) -> None:
    directory = authority.issue(NODE)
    assert directory == authority.directory / "node" / NODE.id
    for path in (*directory.iterdir(), *(authority.directory / "ca").iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StartupError, match="rotate"):
        authority.create()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files to another group takes root")
@pytest.mark.parametrize(("directory_mode", "mode"), [(0o750, 0o640), (0o700, 0o600), (0o755, 0o600)])
def test_a_directory_that_was_made_for_a_group_shares_its_files_with_it(
    authority: Authority, directory_mode: int, mode: int
) -> None:
    directory = authority.directory / "gateway"
    directory.mkdir()
    os.chown(directory, -1, GROUP)
    directory.chmod(directory_mode)
    authority.issue(RoleName(Role.GATEWAY))
    for path in directory.iterdir():
        status = path.stat()
        assert (status.st_mode & 0o777, status.st_gid == GROUP) == (mode, mode == 0o640), path


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_files_of_another_user_are_read_from_a_read_only_mount_alone(authority: Authority, tmp_path: Path) -> None:
    directory = authority.issue(NODE)
    for path in directory.iterdir():
        os.chown(path, GROUP, -1)
    with pytest.raises(StartupError, match="can be changed by other users"):
        Identity(directory)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    subprocess.run(["mount", "--bind", "-o", "ro", str(directory), str(mounted)], check=True)
    try:
        assert Identity(mounted).material().facts.name == NODE
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_without_an_authority_the_text_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="puna trust init"):
        Authority(tmp_path).issue(NODE)


def test_the_key_of_the_authority_is_not_read_through_a_link(authority: Authority) -> None:
    key = authority.directory / "ca" / "ca.key"
    key.rename(key.with_name("elsewhere"))
    key.symlink_to("elsewhere")
    with pytest.raises(StartupError, match=r"ca\.key"):
        authority.issue(NODE)


def test_what_is_due_is_renewed_for_as_long_as_it_was_good(tmp_path: Path) -> None:
    now_s = NOW_S
    authority = Authority(tmp_path, wall_unix_s=lambda: now_s)
    authority.create()
    authority.issue(NODE, life_s=DAY_S)
    authority.issue(RoleName(Role.GATEWAY), life_s=4 * DAY_S)
    assert authority.renew() == []
    now_s += DAY_S / 2
    assert authority.renew() == [NODE]
    assert [(one.name.role, one.valid_to_unix_s) for one in authority.issued()] == [
        (Role.GATEWAY, NOW_S + 4 * DAY_S),
        (Role.NODE, now_s + DAY_S),
    ]


def test_after_a_rotation_both_authorities_are_accepted_and_after_two_the_first_is_not(authority: Authority) -> None:
    old = authority.issue(NODE)
    first = (old / "tls.crt").read_bytes(), (old / "tls.key").read_bytes()
    authority.rotate()
    assert Identity(old).material().facts.name == NODE
    assert (old / "ca.crt").read_bytes().count(b"BEGIN") == 2
    authority.issue(NODE)
    authority.rotate()
    assert Identity(old).material().facts.name == NODE
    (old / "tls.crt").write_bytes(first[0])
    (old / "tls.key").write_bytes(first[1])
    with pytest.raises(StartupError, match="another cluster"):
        Identity(old)


def _remove(directory: Path) -> None:
    (directory / "tls.key").unlink()


def _swap(directory: Path) -> None:
    (directory / "tls.key").write_bytes(issue(make_authority(NOW_S), NODE, now_unix_s=NOW_S).key)


def _open_to_all(directory: Path) -> None:
    (directory / "tls.key").chmod(0o644)


def _writable(directory: Path) -> None:
    (directory / "ca.crt").chmod(0o666)


def _empty(directory: Path) -> None:
    (directory / "tls.crt").write_bytes(b"")


def _pipe(directory: Path) -> None:
    (directory / "ca.crt").unlink()
    os.mkfifo(directory / "ca.crt")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_remove, r"tls\.key: No such file or directory; `puna trust issue` writes it"),
        (_swap, "key belongs to another certificate"),
        (_open_to_all, "can be read by other users; set mode 0600"),
        (_writable, "can be changed by other users"),
        (_empty, "no certificate in PEM"),
        (_pipe, "not a regular file"),
    ],
)
def test_files_that_cannot_be_used_are_one_line(authority: Authority, damage, text: str) -> None:  # type: ignore[no-untyped-def]
    directory = authority.issue(NODE)
    damage(directory)
    with pytest.raises(StartupError, match=text) as caught:
        Identity(directory)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)


def test_the_links_of_a_mounted_secret_are_followed(authority: Authority, tmp_path: Path) -> None:
    directory = authority.issue(NODE)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for path in directory.iterdir():
        (mounted / path.name).symlink_to(path)
    assert Identity(mounted).material().facts.name == NODE


def test_a_damaged_renewal_leaves_the_last_good_certificate_in_use(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.trust.identity.LOOK_S", 0.0)
    directory = authority.issue(NODE)
    identity = Identity(directory)
    first = identity.material()
    (directory / "tls.crt").write_bytes(b"half of one")
    assert identity.material() is first
    authority.issue(NODE)
    assert identity.material().pair.key != first.pair.key


@pytest.mark.parametrize(("past_s", "late"), [(0.0, 0.0), (0.70 * LIFE_S, 0.0), (0.76 * LIFE_S, 1.0)])
def test_metrics_say_that_a_renewal_is_late_at_half_of_what_is_left(past_s: float, late: float, tmp_path: Path) -> None:
    """Renewal is due at half of the life: half of what is left then has passed after three quarters."""
    authority = Authority(tmp_path / "trust", wall_unix_s=lambda: time.time() - past_s)
    authority.create()
    identity = Identity(authority.issue(NODE))
    with acting_as(identity):
        assert REGISTRY.get_sample_value("puna_certificate_renewal_late") == late
        ends_unix_s = REGISTRY.get_sample_value("puna_certificate_expires_timestamp_seconds")
    assert ends_unix_s == identity.material().facts.valid_to_unix_s


def test_a_rotation_waits_until_a_certificate_is_written(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    rotation = threading.Thread(target=authority.rotate)

    def issue_while_another_rotates(*arguments: Any, **more: Any) -> KeyPair:
        rotation.start()
        rotation.join(0.3)  # it ends within that where nothing holds it up
        return issue(*arguments, **more)

    monkeypatch.setattr(authority_module, "issue", issue_while_another_rotates)
    written = authority.issue(NODE)
    rotation.join()
    assert (written / "ca.crt").read_bytes() == authority.authorities()

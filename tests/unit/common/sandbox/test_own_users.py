"""Reasons for which a host cannot give each runner a user of its own."""

import os
from pathlib import Path

import pytest

from common.sandbox.own_users import separation_fault

# With all capabilities, and with those that Docker gives.
ALL, OF_DOCKER = "000001ffffffffff", "00000000a80425fb"


@pytest.mark.parametrize(
    ("user", "held", "users", "fault"),
    [
        (0, ALL, 4294967295, ""),
        (1000, ALL, 4294967295, "it is not root"),
        (0, OF_DOCKER, 4294967295, "it lacks CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE"),
        (0, ALL, 65536, "its user namespace lacks users 2113929216 to 2118123519"),
    ],
)
def test_root_with_the_capabilities_and_the_users_separates_runners(
    user: int, held: str, users: int, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    (tmp_path / "status").write_text(f"Name:\tpython\nCapEff:\t{held}\n")
    for kind in ("uid", "gid"):
        (tmp_path / f"{kind}_map").write_text(f"         0          0 {users}\n")
    assert separation_fault(tmp_path) == fault

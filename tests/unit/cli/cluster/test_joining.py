"""Directories of the certificates of one machine's processes."""

from pathlib import Path

import pytest

from cli.cluster.joining import identity_directory
from common.trust.roles import Role


@pytest.mark.parametrize("role", [Role.GATEWAY, Role.OPERATOR])
def test_a_role_without_ids_has_one_directory_whatever_the_node_is_called(tmp_path: Path, role: Role) -> None:
    assert identity_directory(tmp_path, role, "a") == identity_directory(tmp_path, role) == tmp_path / role


def test_a_node_has_the_directory_of_its_configured_id(tmp_path: Path) -> None:
    assert identity_directory(tmp_path, Role.NODE, "a") == tmp_path / "node" / "a"

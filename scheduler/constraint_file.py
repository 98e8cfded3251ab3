"""The operator's file of constraints (`PUNA_PLACEMENTS`): TOML, one table per model.

[models."llama3:8b"]
replicas_min = 1
devices = ["node-a/GPU-5e1f"]
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from common.errors import InvalidRequest, StartupError
from scheduler.core.values.constraint_fields import parse_constraints
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.routing_table import with_tag

FILE_BYTES_MAX = 4 * 1024 * 1024


def read_constraints_file(path: str) -> Mapping[str, Constraints]:
    """Read the constraints in a file, by model name with tag; an empty path means that there is none.

    Raises:
        StartupError: it cannot be read, or what it says is of no use; the text names the model and the constraint.
    """
    if not path:
        return {}
    try:
        data = Path(path).read_bytes()
        if len(data) > FILE_BYTES_MAX:
            raise StartupError(f"PUNA_PLACEMENTS: {path} has more than {FILE_BYTES_MAX} bytes")
        document = tomllib.loads(data.decode())
    except OSError as error:
        raise StartupError(f"PUNA_PLACEMENTS: {path}: {error.strerror or error}") from error
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise StartupError(f"PUNA_PLACEMENTS: {path}: {error}") from error
    tables = document.get("models", {})
    strange = [name for name in document if name != "models"]
    if strange or not isinstance(tables, dict):
        raise StartupError(f'PUNA_PLACEMENTS: {path}: only tables [models."name"] are known')
    return {with_tag(name): _parse(path, name, table) for name, table in tables.items()}


def _parse(path: str, name: str, table: object) -> Constraints:
    if not isinstance(table, dict):
        raise StartupError(f'PUNA_PLACEMENTS: {path}: models."{name}" must be a table')
    try:
        return parse_constraints(table)
    except InvalidRequest as error:
        raise StartupError(f'PUNA_PLACEMENTS: {path}: models."{name}": {error.message}') from error

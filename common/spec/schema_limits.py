"""Limits of JSON schemas in requests, checked before compilation: bounded, local, and of the right types. Pure."""

from typing import Any

from common.errors import InvalidRequest

DEPTH_MAX = 32
NODES_MAX = 5_000
ENUM_VALUES_MAX = 10_000
PATTERN_LENGTH_MAX = 512
PATTERN_NESTING_MAX = 16
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
# Their values are schemas by name; the names are people's own and mean nothing.
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
# Their values are data, not schemas.
_DATA = frozenset({"enum", "const", "default", "example", "examples"})


def check_schema(schema: Any, field: str) -> None:
    """Hold a schema to the limits.

    Raises:
        InvalidRequest: names the limit, and the field of the request.
    """
    level: list[tuple[Any, bool]] = [(schema, False)]
    nodes = depth = 0
    while level:
        depth, nodes = depth + 1, nodes + len(level)
        if depth > DEPTH_MAX:
            raise InvalidRequest(f"the schema in {field} is nested deeper than {DEPTH_MAX} levels", param=field)
        if nodes > NODES_MAX:
            raise InvalidRequest(f"the schema in {field} has more than {NODES_MAX} parts", param=field)
        below: list[tuple[Any, bool]] = []
        for node, is_names in level:
            if isinstance(node, dict):
                below += _below(node, field, is_names=is_names)
            elif isinstance(node, list):
                below += [(item, False) for item in node if isinstance(item, dict | list)]
        level = below


def _below(node: dict[str, Any], field: str, *, is_names: bool) -> list[tuple[Any, bool]]:
    """List the values of an object; `is_names`: it is no schema, but holds schemas by name."""
    if not is_names:
        _check_keywords(node, field)
    found: list[tuple[Any, bool]] = []
    for name, value in node.items():
        if is_names:
            found.append((value, False))
        elif name not in _DATA and isinstance(value, dict | list):
            found.append((value, name in _BY_NAME))
    return found


def _check_keywords(node: dict[str, Any], field: str) -> None:
    kind = node.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is not None and not all(isinstance(one, str) and one in _TYPES for one in kinds):
        raise InvalidRequest(f"the schema in {field} has a type that is none of JSON's", param=field)
    reference = node.get("$ref")
    if reference is not None and not (isinstance(reference, str) and reference.startswith("#")):
        raise InvalidRequest(f"the schema in {field} refers to something outside itself", param=field)
    values = node.get("enum")
    if isinstance(values, list) and len(values) > ENUM_VALUES_MAX:
        raise InvalidRequest(f"the schema in {field} has an enum of more than {ENUM_VALUES_MAX} values", param=field)
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        _check_pattern(pattern, field)


def _check_pattern(pattern: str, field: str) -> None:
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidRequest(
            f"the schema in {field} has a pattern of more than {PATTERN_LENGTH_MAX} characters", param=field
        )
    depth = deepest = 0
    escaped = in_set = False
    for character in pattern:
        if escaped or character == "\\":
            escaped = not escaped and character == "\\"
        elif in_set or character == "[":
            in_set = character != "]"
        elif character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    if deepest > PATTERN_NESTING_MAX:
        raise InvalidRequest(
            f"the schema in {field} has a pattern nested deeper than {PATTERN_NESTING_MAX} groups", param=field
        )

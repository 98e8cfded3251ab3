"""Schemas of many kinds, each with a value that validates and one that does not."""

from typing import Any

Example = tuple[Any, Any, Any]

_TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "below": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    },
    "required": ["name"],
}
_SHAPES = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0}},
            "required": ["kind", "radius"],
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}},
            "required": ["kind", "side"],
        },
    ]
}
_PERSON = {
    "$defs": {"name": {"type": "string", "minLength": 1, "maxLength": 8}},
    "type": "object",
    "title": "Person",
    "properties": {
        "first": {"$ref": "#/$defs/name", "description": "given name"},
        "last": {"$ref": "#/$defs/name"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "married": {"type": "boolean"},
    },
    "required": ["last", "age"],
    "additionalProperties": False,
}

EXAMPLES: dict[str, Example] = {
    "an empty object schema": ({"type": "object"}, {"a": [1]}, []),
    "a boolean": ({"type": "boolean"}, True, 1),
    "null": ({"type": "null"}, None, 0),
    "an integer": ({"type": "integer"}, -12, 1.5),
    "a number": ({"type": "number"}, -1.5e3, "1"),
    "a string": ({"type": "string"}, 'a"\\\n é 😀', 1),
    "two types": ({"type": ["integer", "null"]}, None, "x"),
    "nullable": ({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, "abc", 3),
    "shortest": ({"type": "string", "minLength": 3}, "abc", "ab"),
    "longest": ({"type": "string", "maxLength": 3}, "", "abcd"),
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 4}, "é😀x", "é"),
    "long lengths": ({"type": "string", "minLength": 300, "maxLength": 700}, "a" * 555, "a" * 299),
    "const text": ({"const": "ja"}, "ja", "nein"),
    "const object": ({"const": {"a": [1, None, "é"]}}, {"a": [1, None, "é"]}, {"a": []}),
    "enum": ({"enum": ["red", "green", 3, None, True]}, "green", "blue"),
    "enum of a type": ({"type": "string", "enum": ["red", 4]}, "red", 4),
    "unicode": ({"enum": ["naïve", "日本", "😀", 'q"\\', "\n"]}, "日本", "n"),
    "range": ({"type": "integer", "minimum": 5, "maximum": 123}, 77, 124),
    "negative range": ({"type": "integer", "minimum": -250, "maximum": -7}, -250, -6),
    "range over zero": ({"type": "integer", "minimum": -3, "maximum": 12}, -3, 13),
    "exclusive range": ({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 101}, 100, 101),
    "what a double holds": (
        {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        9007199254740991,
        9007199254740992,
    ),
    "from": ({"type": "integer", "minimum": 18}, 19, 17),
    "to": ({"type": "integer", "maximum": -1}, -100, 0),
    "one number": ({"type": "integer", "minimum": 7, "maximum": 7}, 7, 8),
    "number range": ({"type": "number", "minimum": 0, "maximum": 1}, 0.25, 1.25),
    "number over zero": ({"type": "number", "minimum": -2, "maximum": 3}, -1.5, -2.5),
    "number above": ({"type": "number", "exclusiveMinimum": 0}, 0.5, 0),
    "number below": ({"type": "number", "exclusiveMaximum": 0}, -0.5, 0),
    "number between": ({"type": "number", "minimum": 0.25, "maximum": 0.75}, 0.5, 0.8),
    "open number between": ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, 1.5, 2),
    "half": ({"type": "number", "minimum": 1.5, "maximum": 9.5}, 2, 1),
    "array": ({"type": "array", "items": {"type": "integer"}}, [1, 2], ["1"]),
    "short array": ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, [], [True] * 3),
    "long array": ({"type": "array", "items": {"type": "null"}, "minItems": 2}, [None] * 2, [None]),
    "counted array": ({"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 3}, [2, 1], []),
    "tuple": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 2}], "items": False},
        [1, "a"],
        ["a", 1],
    ),
    "tuple and more": (
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 3},
        [1, 2, 2],
        [2],
    ),
    "no items": ({"type": "array", "maxItems": 0}, [], [1]),
    "nested arrays": (
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "maxItems": 2},
        [[1], []],
        [1],
    ),
    "person": (_PERSON, {"first": "Ann", "last": "Lee", "age": 44}, {"last": "Lee", "age": 200}),
    "optional first": (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["c"]},
        {"b": 2, "c": 3},
        {"a": 1},
    ),
    "all optional": (
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": False},
        {},
        {"c": 1},
    ),
    "closed and empty": ({"type": "object", "properties": {}, "additionalProperties": False}, {}, {"a": 1}),
    "more of a kind": (
        {
            "type": "object",
            "properties": {"id": {"type": "integer"}},
            "required": ["id"],
            "additionalProperties": {"type": "boolean"},
        },
        {"id": 1, "ids": True},
        {"id": 1, "x": 2},
    ),
    "more beside long names": (
        {
            "type": "object",
            "properties": {"n" * 200: {"const": 1}, "n" * 199 + "m": {"const": 2}},
            "additionalProperties": {"type": "null"},
        },
        {"n" * 199: None, "x": None},
        {"n" * 200: None},
    ),
    "a map": ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1, "é": 2}, {"a": "1"}),
    "required alone": ({"type": "object", "required": ["x"]}, {"x": 1}, {}),
    "nested objects": (
        {
            "type": "object",
            "properties": {"a": {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}},
            "required": ["a"],
        },
        {"a": {"b": None}},
        {"a": {}},
    ),
    "tree": (_TREE, {"name": "x", "below": [{"name": "y"}]}, {"below": []}),
    "linked list": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "anyOf": [
                        {"type": "null"},
                        {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]},
                    ]
                }
            },
        },
        {"next": {"next": None}},
        {"next": 1},
    ),
    "shapes": (_SHAPES, {"kind": "square", "side": 2}, {"kind": "square", "radius": 2}),
    "one of types": ({"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}, "a", 1.5),
    "any of": ({"anyOf": [{"type": "integer", "minimum": 10}, {"const": "none"}]}, "none", 3),
    "any of beside": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        {"b": 1},
        {},
    ),
    "all of": (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "null"}}, "required": ["b"]},
            ]
        },
        {"a": 1, "b": None},
        {"a": 1},
    ),
    "all of enums": ({"allOf": [{"enum": ["a", "b", 1]}, {"enum": ["c", "b", 1.0]}]}, "b", "a"),
    "all of bounds": ({"allOf": [{"type": "number", "minimum": 1}, {"type": "integer", "maximum": 5}]}, 3, 0.5),
    "pattern": ({"type": "string", "pattern": "^[A-Z]{2}-\\d{3,4}$"}, "AB-123", "AB-12"),
    "pattern alternatives": ({"type": "string", "pattern": '^(?:yes|no|"maybe"?)$'}, "no", "perhaps"),
    "pattern anywhere": ({"type": "string", "pattern": "at|^dog"}, "a cat", "a dog"),
    "pattern with escapes": ({"type": "string", "pattern": "^\\\\[\\w.]+\\t?[^a-z]$"}, "\\a.b9", "a9"),
    "date": ({"type": "string", "format": "date"}, "2024-02-28", 7),
    "date-time": ({"type": "string", "format": "date-time"}, "2024-12-31T23:59:59Z", 7),
    "uuid": ({"type": "string", "format": "uuid"}, "01234567-89ab-cdef-0123-456789abcdef", 7),
    "other format": ({"type": "string", "format": "hostname", "maxLength": 9}, "a.b", 1),
    "no type": ({"properties": {"n": {"minimum": 1, "maximum": 2}}, "required": ["n"]}, {"n": 2}, {"n": 3}),
    "names with signs": (
        {"type": "object", "properties": {'a"b': {"const": 1}, "ü\\": {"const": 2}}, "required": ['a"b']},
        {'a"b': 1},
        {},
    ),
}

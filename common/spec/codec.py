"""One codec between frozen values, protos and JSON, driven by the fields of a value and its message.

Both have fields of the same names; a field that only one of them has is an error at import. So a new field is declared
twice, in the value and in the proto, and converted nowhere by hand. A field with `local` in its metadata belongs to the
process that holds the value, and is not converted.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

_UNSPECIFIED = "UNSPECIFIED"


class Value(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


ValueT = TypeVar("ValueT", bound=Value)
MessageT = TypeVar("MessageT", bound=Message)
EnumT = TypeVar("EnumT", bound=Enum)


class EnumCodec(Generic[EnumT]):
    """Converts an enumeration; its members are named as those of the proto without their prefix."""

    def __init__(self, members: type[EnumT], proto: EnumDescriptor, *, unknown: EnumT) -> None:
        """Compile the table. `unknown` is the meaning of an unset value, and of one that only a newer peer knows.

        Raises:
            TypeError: a member is missing on one side.
        """
        numbers = {one.name: one.number for one in proto.values}
        prefix = next(name for name in numbers if name.endswith(_UNSPECIFIED)).removesuffix(_UNSPECIFIED)
        self._numbers = {one: numbers[prefix + one.name] for one in members if prefix + one.name in numbers}
        if len(self._numbers) + 1 != len(numbers) or {*members} - {*self._numbers, unknown}:
            raise TypeError(f"{members.__name__} and {prefix}… differ in members")
        self._members = {number: one for one, number in self._numbers.items()}
        self._unknown = unknown
        self.from_json = members

    def from_proto(self, number: int) -> EnumT:
        """Convert a number."""
        return self._members.get(number, self._unknown)

    def find(self, number: int) -> EnumT | None:
        """Convert a number; None if it is not set, or not known."""
        return self._members.get(number)

    def to_proto(self, member: EnumT | None) -> Any:
        """Convert a member to the number of its proto; 0, unset, for None and for a member that the proto lacks."""
        return 0 if member is None else self._numbers.get(member, 0)

    def to_json(self, member: EnumT) -> str:
        """Convert a member to its text."""
        return str(member.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One field: its conversions, and whether a message knows that it is not set."""

    is_optional: bool
    read: "Convert"
    write: "Convert"
    parse: "Convert"
    show: "Convert"


class Codec(Generic[ValueT, MessageT]):
    """Converts one class of values to one class of messages or to JSON, and back.

    Repeated fields become tuples and maps become dicts. A field that is not set takes the value's default, which for a
    field without presence is the proto's. JSON has the value's field names, and lists for tuples.
    """

    def __init__(
        self,
        value: type[ValueT],
        message: type[MessageT],
        *,
        nested: "Mapping[str, Inner] | None" = None,
        partial: bool = False,
    ) -> None:
        """Compile the table. `nested` are the codecs of enumerations and messages among the fields.

        `partial`: the table has the fields that mean the same on both sides; each call gives the others.

        Raises:
            TypeError: a field is missing on one side, or has two defaults.
            KeyError: a field needs a codec that `nested` lacks.
        """
        self.value, self.message = value, message
        title = f"{value.__name__} and {message.DESCRIPTOR.full_name}"
        declared = {one.name: one for one in message.DESCRIPTOR.fields}
        kept = {one.name: one for one in fields(value) if "local" not in one.metadata}
        if not partial and (differing := sorted({*kept} ^ {*declared})):
            raise TypeError(f"{title} differ in {', '.join(differing)}")
        codecs, empty = nested or {}, message()
        self._columns: dict[str, _Column] = {}
        for name in (one for one in declared if one in kept and (not partial or _is_known(declared[one], codecs))):
            column, default = _column(declared[name], codecs), kept[name].default
            if column.is_optional:
                means_the_same = default is not MISSING
            else:
                means_the_same = default is MISSING or default == column.read(getattr(empty, name))
            if means_the_same:
                self._columns[name] = column
            elif not partial:
                raise TypeError(f"{title} differ in what no {name} means")
        self._kept = kept
        self._unwritten = kept.keys() & declared.keys() - self._columns.keys()
        # Every request and every report is converted: one function for each set of given fields, as fast as by hand.
        self._readers: dict[tuple[str, ...], Callable[[MessageT, dict[str, Any]], ValueT]] = {}
        self._writers: dict[tuple[str, ...], Callable[[ValueT, dict[str, Any]], MessageT]] = {}

    def from_proto(self, message: MessageT, **others: Any) -> ValueT:
        """Convert a message; fields that only a newer peer knows are left out. `others` are taken as they are.

        Raises:
            TypeError: a field of the value is neither in the table nor given.
        """
        read = self._readers.get(names := tuple(others))
        if read is None:
            read = self._readers[names] = self._compile_reader(names)
        return read(message, others)

    def to_proto(self, value: ValueT, **others: Any) -> MessageT:
        """Convert a value; every field is set, except those that are None. `others` are set as they are.

        Raises:
            TypeError: a field that both sides have is neither in the table nor given.
        """
        write = self._writers.get(names := tuple(others))
        if write is None:
            write = self._writers[names] = self._compile_writer(names)
        return write(value, others)

    def _compile_reader(self, given: tuple[str, ...]) -> Callable[[MessageT, dict[str, Any]], ValueT]:
        if lacking := self._kept.keys() - self._columns.keys() - {*given}:
            raise TypeError(f"{self.value.__name__} lacks {', '.join(sorted(lacking))}")
        arguments: dict[str, str] = {}
        names: dict[str, Any] = {"make": self.value}
        for name, column in self._columns.items():
            found = arguments[name] = _call(name, column.read, names)
            if column.is_optional:
                names[f"default_{name}"] = self._kept[name].default
                arguments[name] = f"{found} if found.HasField({name!r}) else default_{name}"
        return _compile(arguments, given, names)

    def _compile_writer(self, given: tuple[str, ...]) -> Callable[[ValueT, dict[str, Any]], MessageT]:
        if lacking := self._unwritten - {*given}:
            raise TypeError(f"{self.message.DESCRIPTOR.name} lacks {', '.join(sorted(lacking))}")
        names: dict[str, Any] = {"make": self.message}
        arguments = {name: _call(name, column.write, names) for name, column in self._columns.items()}
        return _compile(arguments, given, names)

    def from_json(self, content: Mapping[str, Any]) -> ValueT:
        """Convert JSON; what is missing takes its default, what is unknown is left out.

        Raises:
            AttributeError, TypeError, ValueError: a field is of another type, or one without a default is missing.
        """
        return self.value(
            **{name: column.parse(content[name]) for name, column in self._columns.items() if name in content}
        )

    def to_json(self, value: ValueT) -> dict[str, Any]:
        """Convert a value to what a JSON writer takes."""
        return {name: column.show(getattr(value, name)) for name, column in self._columns.items()}


def _call(field: str, convert: "Convert", names: dict[str, Any]) -> str:
    """Return the expression that converts a field."""
    names[f"convert_{field}"] = convert
    return f"found.{field}" if convert is _same else f"convert_{field}(found.{field})"


def _compile(arguments: Mapping[str, str], given: tuple[str, ...], names: dict[str, Any]) -> Callable[..., Any]:
    """Compile a function that makes an object from `found` and the given fields, as dataclasses does for `__init__`."""
    read = [f"{name}={text}" for name, text in arguments.items() if name not in given]
    text = f"lambda found, others: make({', '.join([*read, '**others'])})"
    compiled: Callable[..., Any] = eval(text, names)  # noqa: S307  # the names of fields
    return compiled


Convert = Callable[[Any], Any]
Inner = EnumCodec[Any] | Codec[Any, Any]


def _is_known(field: Any, nested: Mapping[str, Inner]) -> bool:
    """Return True if a field needs no codec, or has one."""
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    return field.name in nested or is_map or (field.message_type is None and field.enum_type is None)


def _column(field: Any, nested: Mapping[str, Inner]) -> _Column:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_scalar(field.message_type.fields_by_name[name]) for name in ("key", "value"))
        return _Column(
            is_optional=False,
            read=dict,
            write=dict,
            parse=lambda found: {key(name): value(one) for name, one in found.items()},
            show=lambda found: {str(name): one for name, one in found.items()},
        )
    if field.message_type is not None or field.enum_type is not None:
        inner = nested[field.name]
        conversions: tuple[Convert, ...] = (inner.from_proto, inner.to_proto, inner.from_json, inner.to_json)
    else:
        conversions = (_same, _same, _scalar(field), _same)
    if field.is_repeated:
        conversions = (_each(conversions[0]), *map(_each, conversions[1:]))
    elif field.has_presence:
        conversions = (conversions[0], *map(_or_none, conversions[1:]))
    read, write, parse, show = conversions
    return _Column(is_optional=field.has_presence, read=read, write=write, parse=parse, show=show)


def _scalar(field: Any) -> Convert:
    match field.cpp_type:
        case field.CPPTYPE_BOOL:
            return bool
        case field.CPPTYPE_STRING:
            return str
        case field.CPPTYPE_FLOAT | field.CPPTYPE_DOUBLE:
            return float
        case _:
            return int


def _same(found: Any) -> Any:
    return found


def _each(convert: Convert) -> Convert:
    return tuple if convert is _same else lambda found: tuple([convert(one) for one in found])


def _or_none(convert: Convert) -> Convert:
    return _same if convert is _same else lambda found: None if found is None else convert(found)

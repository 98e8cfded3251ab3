"""Who asked for what: a command, the operator's file, a request, or the cluster's settings. Pure."""

from dataclasses import dataclass, fields
from enum import StrEnum

from scheduler.core.values.constraint_fields import written_constraints
from scheduler.core.values.constraints import Constraints


class Origin(StrEnum):
    """Where a constraint comes from."""

    FILE = "file"
    COMMAND = "command"
    REQUEST = "request"
    DEFAULT = "default"  # a setting of the cluster, which any of the others may overrule


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedConstraint:
    """One constraint that a decision is held to, as people write it."""

    name: str
    value: str
    origin: Origin


def defaults_for(wishes: Constraints, defaults: Constraints) -> Constraints:
    """What of the defaults holds beside these wishes; everything else asks for nothing."""
    merged = wishes.with_defaults(defaults)
    added = {
        field.name: getattr(merged, field.name)
        for field in fields(Constraints)
        if getattr(merged, field.name) != getattr(wishes, field.name)
    }
    return Constraints(**added)


def applied_constraints(
    wishes: Constraints, effective: Constraints, defaults: Constraints, *, from_file: bool
) -> tuple[AppliedConstraint, ...]:
    """What holds for a load, by name. `effective`: wishes, a request's options and the defaults in one."""
    wished = written_constraints(wishes)
    defaulted = written_constraints(defaults_for(wishes, defaults))

    def origin_of(name: str, value: object) -> Origin:
        if wished.get(name) == value:
            return Origin.FILE if from_file else Origin.COMMAND
        return Origin.DEFAULT if defaulted.get(name) == value else Origin.REQUEST

    return tuple(
        AppliedConstraint(name=name, value=_text(value), origin=origin_of(name, value))
        for name, value in sorted(written_constraints(effective).items())
    )


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return ",".join(str(one) for one in value)
        case dict():
            return ",".join(f"{label}:{count}" for label, count in value.items())
        case _:
            return str(value)

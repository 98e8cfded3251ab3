"""Origin of constraints: a command, the operator's file, a request, or the cluster's settings. Pure."""

from dataclasses import dataclass, fields
from enum import StrEnum

from scheduler.core.values.constraint_fields import written_constraints
from scheduler.core.values.constraints import Constraints


class ConstraintOrigin(StrEnum):
    """Origin of a constraint."""

    FILE = "file"
    COMMAND = "command"
    REQUEST = "request"
    DEFAULT = "default"  # a setting of the cluster, which any of the others may overrule


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedConstraint:
    """One constraint that a decision is held to, as people write it."""

    name: str
    value: str
    origin: ConstraintOrigin


def defaults_for(own: Constraints, defaults: Constraints) -> Constraints:
    """Return the defaults that hold beside these constraints; every other field asks for nothing."""
    merged = own.with_defaults(defaults)
    added = {
        field.name: getattr(merged, field.name)
        for field in fields(Constraints)
        if getattr(merged, field.name) != getattr(own, field.name)
    }
    return Constraints(**added)


def applied_constraints(
    own: Constraints, effective: Constraints, defaults: Constraints, *, from_file: bool
) -> tuple[AppliedConstraint, ...]:
    """Return the constraints of a load, by name. `effective`: constraints, request options and defaults in one."""
    written = written_constraints(own)
    defaulted = written_constraints(defaults_for(own, defaults))

    def origin_of(name: str, value: object) -> ConstraintOrigin:
        if written.get(name) == value:
            return ConstraintOrigin.FILE if from_file else ConstraintOrigin.COMMAND
        return ConstraintOrigin.DEFAULT if defaulted.get(name) == value else ConstraintOrigin.REQUEST

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

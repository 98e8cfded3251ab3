"""The table of audited acts in docs/operators.md, written from the code: `python -m tools.audit_table [--check]`."""

import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from common.audit.acts import ACT_FIELDS, Act
from gateway.grpc.grpc_keys import SCOPES
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.routes import make_routes
from gateway.keys.audit import is_administrative
from tools.generated import ROOT, between, write_or_check

DOCUMENT = ROOT / "docs" / "operators.md"
BEGIN = "<!-- audited acts, from the code: python -m tools.audit_table -->"
END = "<!-- end of audited acts -->"
# Those of machines that join, which no command of this machine alone makes.
OF_PROCESSES = frozenset({Act.TRUST_JOIN, Act.NODE_ADMIT, Act.NODE_RENEW})
# Nothing is asked of a service while its routes are listed.
_NOTHING: dict[str, Any] = {field.name: None for field in fields(Service) if field.init and field.default is MISSING}


def administrative_routes() -> list[Route]:
    """List the routes of a gateway whose requests are acts."""
    routes = make_routes(Service(**(_NOTHING | {"version": "0"})))
    return [route for route in routes if is_administrative(route.scope, f"{route.method} {route.path}")]


def table() -> str:
    """Return the table of acts outside of gateways, and that of gateways."""
    outside = ["| act | by | fields of its own |", "|---|---|---|", *_outside()]
    return "\n".join([*outside, "", "| act at a gateway | scope | what |", "|---|---|---|", *_at_gateways()])


def _outside() -> Iterator[str]:
    for act, (where, names) in ACT_FIELDS.items():
        yield f"| `{act}` | {where} | {', '.join(f'`{name}`' for name in names)} |"


def _at_gateways() -> Iterator[str]:
    for route in administrative_routes():
        yield f"| `{route.method} {route.path}` | `{route.scope}` | {route.summary} |"
    for method, scope in SCOPES.items():
        if is_administrative(scope, method):
            yield f"| `/puna.v1.Inference/{method}` | `{scope}` | the same over gRPC |"


def page(text: str) -> str:
    """Return the page with the table of the code."""
    return between(text, BEGIN, END, table())


def main(arguments: list[str]) -> int:
    """Write the page, or compare it. 1: not up to date."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return write_or_check({DOCUMENT: page(text)}, arguments, tool="audit_table")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

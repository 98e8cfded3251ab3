"""`puna alias set`, `rm` and `list`."""

from urllib.parse import quote

from cli.core.exit_codes import ExitCode
from cli.core.listing_rows import ALIAS_HEADINGS, alias_rows
from cli.errors import CommandFailed
from cli.output import print_answer, print_json, print_table
from cli.server import Server

_PATH = "/puna/v1/aliases"


def set_to(alias: str, model: str, *, as_json: bool) -> None:
    """Point a name to a model."""
    answer = Server.of().send("PUT", f"{_PATH}/{quote(alias, safe='')}", {"model": model})
    print_answer(answer, f"{answer.get('alias')} is {answer.get('model')}", as_json=as_json)


def remove(alias: str, *, as_json: bool) -> None:
    """Forget a second name.

    Raises:
        CommandFailed: there is none of this name.
    """
    answer = Server.of().send("DELETE", f"{_PATH}/{quote(alias, safe='')}")
    if not answer.get("was_set"):
        raise CommandFailed(f"{alias} is no alias", ExitCode.NOT_FOUND)
    print_answer(answer, f"{answer.get('alias')} is no alias any more", as_json=as_json)


def show_all(*, as_json: bool) -> None:
    """Every second name."""
    answer = Server.of().get(_PATH)
    if as_json:
        print_json(answer)
        return
    print_table(ALIAS_HEADINGS, alias_rows(answer.get("aliases") or []))

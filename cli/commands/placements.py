"""`puna placements`, `load`, `unload` and `explain`."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlencode

from cli.core.constraint_words import WORDS_TEXT, constraints_of_words
from cli.core.conversation import number_if_one
from cli.core.exit_codes import ExitCode
from cli.core.explain_text import explain_lines
from cli.core.listing_rows import CONSTRAINT_HEADINGS, constraint_rows
from cli.errors import CommandFailed
from cli.output import print_json, print_table
from cli.progress import load_teller
from cli.server import Server
from cli.settings import CliSettings

# A test of a device has 30 s, and may wait for the one before it.
_TEST_WITHIN_S = 75.0
_PATH = "/puna/v1/placements"


def show(model: str | None, *, as_json: bool) -> None:
    """What is set, for one model or all."""
    answer = _server().get(_PATH if model is None else f"{_PATH}/{quote(model, safe='')}")
    if as_json:
        print_json(answer)
    else:
        models = answer.get("models") if model is None else [answer]
        print_table(CONSTRAINT_HEADINGS, constraint_rows(models or []))


def change(model: str, words: Sequence[str], *, replaces: bool, as_json: bool) -> None:
    """Set what is wanted of a model; what is not named stays, unless everything is replaced."""
    server, path = _server(), f"{_PATH}/{quote(model, safe='')}"
    try:
        wanted = constraints_of_words(words)
    except ValueError as error:
        raise CommandFailed(f"{error} ({WORDS_TEXT})", ExitCode.USAGE) from error
    before: dict[str, Any] = {} if replaces else dict(server.get(path).get("constraints") or {})
    body = {name: value for name, value in {**before, **wanted}.items() if value is not None}
    answer = server.send("PUT", path, body)
    if as_json:
        print_json(answer)
    else:
        print_table(CONSTRAINT_HEADINGS, constraint_rows([answer]))


def forget(model: str, *, as_json: bool) -> None:
    """Forget what is set."""
    answer = _server().send("DELETE", f"{_PATH}/{quote(model, safe='')}")
    if as_json:
        print_json(answer)
        return
    print("forgotten" if answer.get("was_set") else "nothing was set")


def load(model: str, *, num_ctx: int | None, keep_alive: str | None, require_gpu: bool, as_json: bool) -> None:
    """Have a replica, and say how that goes."""
    options: dict[str, Any] = {"num_ctx": num_ctx, "require_gpu": require_gpu or None}
    alive = None if keep_alive is None else number_if_one(keep_alive)
    news = _server().stream("/puna/v1/load", {"model": model, "keep_alive": alive, "options": options})
    try:
        with closing(news), load_teller(model, as_json=as_json) as tell:
            for one in news:
                tell(one)
    except KeyboardInterrupt:
        raise CommandFailed("not waited for any more; the load goes on", ExitCode.INTERRUPTED) from None


def unload(model: str, *, as_json: bool) -> None:
    """Stop the replicas of a model."""
    answer = _server().send("POST", "/puna/v1/unload", {"model": model})
    if as_json:
        print_json(answer)
        return
    count = answer.get("replicas", 0)
    print(f"{count} replica{'' if count == 1 else 's'} told to stop")


def clear_device(device: str, *, as_json: bool) -> None:
    """Have an excluded device tested again."""
    answer = _server().send("POST", "/puna/v1/devices/clear", {"device": device}, answer_within_s=_TEST_WITHIN_S)
    if as_json:
        print_json(answer)
        return
    reason = answer.get("state_reason")
    print(f"{answer.get('node')}/{answer.get('name')}: {answer.get('state')}" + (f", {reason}" if reason else ""))


def explain(model: str, *, num_ctx: int | None, require_gpu: bool, last: bool, as_json: bool) -> None:
    """Why a model lies where it does, or where it would go."""
    query: dict[str, str | int] = {"model": model}
    if num_ctx is not None:
        query["num_ctx"] = num_ctx
    if require_gpu:
        query["require_gpu"] = 1
    if last:
        query["last"] = 1
    answer = _server().get(f"/puna/v1/explain?{urlencode(query)}")
    if as_json:
        print_json(answer)
        return
    for line in explain_lines(answer):
        print(line)


def _server() -> Server:
    return Server.of(CliSettings.load())

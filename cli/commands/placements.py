"""`puna placements`, `load`, `unload` and `explain`."""

import time
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
from cli.output import print_answer, print_json, print_table
from cli.progress import load_reporter
from cli.server import Server

# A test of a device has 30 s, and may wait for the one before it.
_TEST_WITHIN_S = 75.0
_PATH = "/puna/v1/placements"


def show(model: str | None, *, as_json: bool) -> None:
    """Print the constraints of one model or of all."""
    answer = Server.of().get(_PATH if model is None else f"{_PATH}/{quote(model, safe='')}")
    if as_json:
        print_json(answer)
    else:
        models = answer.get("models") if model is None else [answer]
        print_table(CONSTRAINT_HEADINGS, constraint_rows(models or []))


def change(model: str, words: Sequence[str], *, replaces: bool, as_json: bool) -> None:
    """Set what is wanted of a model; what is not named stays, unless everything is replaced."""
    server, path = Server.of(), f"{_PATH}/{quote(model, safe='')}"
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
    answer = Server.of().send("DELETE", f"{_PATH}/{quote(model, safe='')}")
    print_answer(answer, "forgotten" if answer.get("was_set") else "nothing was set", as_json=as_json)


def load(model: str, *, num_ctx: int | None, keep_alive: str | None, require_gpu: bool, as_json: bool) -> None:
    """Have a replica, and say how that goes."""
    options: dict[str, Any] = {"num_ctx": num_ctx, "require_gpu": require_gpu or None}
    alive = None if keep_alive is None else number_if_one(keep_alive)
    news = Server.of().stream("/puna/v1/load", {"model": model, "keep_alive": alive, "options": options})
    try:
        with closing(news), load_reporter(model, as_json=as_json) as report:
            for one in news:
                report(one)
    except KeyboardInterrupt:
        raise CommandFailed("not waited for any more; the load goes on", ExitCode.INTERRUPTED) from None


def unload(model: str, *, as_json: bool) -> None:
    """Stop the replicas of a model."""
    answer = Server.of().send("POST", "/puna/v1/unload", {"model": model})
    count = answer.get("replicas", 0)
    print_answer(answer, f"{count} replica{'' if count == 1 else 's'} will stop once idle", as_json=as_json)


def clear_device(device: str, *, as_json: bool) -> None:
    """Have an excluded device tested again."""
    answer = Server.of().send("POST", "/puna/v1/devices/clear", {"device": device}, answer_within_s=_TEST_WITHIN_S)
    reason = answer.get("state_reason")
    text = f"{answer.get('node')}/{answer.get('name')}: {answer.get('state')}" + (f", {reason}" if reason else "")
    print_answer(answer, text, as_json=as_json)


def explain(model: str, *, num_ctx: int | None, require_gpu: bool, last: bool, as_json: bool) -> None:
    """Print the reasons for a model's placement, or for the one that it would get."""
    options = {"num_ctx": num_ctx, "require_gpu": int(require_gpu), "last": int(last)}
    query = urlencode({"model": model, **{name: value for name, value in options.items() if value}})
    answer = Server.of().get(f"/puna/v1/explain?{query}")
    if as_json:
        print_json(answer)
        return
    for line in explain_lines(answer, now_unix_s=time.time()):
        print(line)

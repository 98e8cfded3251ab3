"""Compile constraints to find out whether they can be used, in a process of its own: a worker of `common.sandbox`.

What a schema costs is known only once it is compiled, and no library can be stopped meanwhile. So the kernel ends this
process when a compilation exceeds its limits, and the gateway ends it when the client leaves. Runners compile what has
passed once more, from the text that is returned: nearly all of that work does not depend on the vocabulary.

In: {"kind", "text", "free_text", "schemas", "lenient"} as JSON, as in `ConstraintText`.
Out: {"lark", "cpu_s"}, or {"error", "param", "cpu_s"}.
"""

import json
import sys
from time import process_time
from typing import Any

from llguidance import LLMatcher

from common.errors import InvalidRequest
from common.sandbox.worker_process import serve_frames
from common.spec.schema_limits import check_schema
from runner.core.grammar.constraint_text import LARK_BYTES_MAX, ConstraintText, lark_text
from runner.core.grammar.token_tree import TokenTree, compile_grammar, error_text

CPU_S_MAX = 2.0
MEMORY_BYTES_MAX = 512 * 1024 * 1024
# A token for each byte: whether tokens of a vocabulary can write an answer is for its runner to say.
_BYTES = TokenTree([bytes([byte]) for byte in range(256)])


def check(constraint: dict[str, Any]) -> dict[str, Any]:
    """Return the text of a constraint for runners, empty if they convert it themselves, or what is wrong with it."""
    started_s = process_time()
    key = ConstraintText(
        kind=constraint["kind"],
        text=constraint["text"],
        free_text=constraint["free_text"],
        schemas=tuple(constraint["schemas"].items()),
        lenient=frozenset(constraint["lenient"]),
    )
    try:
        if key.kind == "json_schema":
            _check_limits(key.text)
        found: dict[str, Any] = {"lark": _checked(key)}
    except InvalidRequest as error:
        found = {"error": error.message, "param": error.param}
    return {**found, "cpu_s": process_time() - started_s}


def _check_limits(schema: str) -> None:
    try:
        value = json.loads(schema)
    except (ValueError, RecursionError):
        return  # refused where it is converted
    check_schema(value, "json_schema")


def _checked(key: ConstraintText) -> str:
    lark = lark_text(key, _BYTES)
    shared = compile_grammar(lark, _BYTES)
    # The work of a first token, which a runner does before the answer, and of a second one.
    matcher = shared.deep_copy()
    _check_error(matcher, key.kind)
    mask = int.from_bytes(matcher.compute_bitmask(), "little") & ((1 << _BYTES.size) - 1)
    # Without a possible first token the matcher has an error as well, with an internal name as its text.
    if not mask and not matcher.is_accepting():
        raise InvalidRequest(f"{key.kind} cannot be used: no answer matches it", param=key.kind)
    if mask:
        matcher.consume_token(mask.bit_length() - 1)
        matcher.compute_bitmask()
    _check_error(matcher, key.kind)
    return lark if len(lark.encode()) <= LARK_BYTES_MAX else ""


def _check_error(matcher: LLMatcher, kind: str) -> None:
    if matcher.is_error():
        raise InvalidRequest(f"{kind} cannot be used: {error_text(matcher)}", param=kind)


def main() -> None:
    """Answer frames until the input ends; the argument is the CPU time of each."""
    serve_frames(
        lambda content: json.dumps(check(json.loads(content))).encode(),
        cpu_s_max=float(sys.argv[1]) if len(sys.argv) > 1 else CPU_S_MAX,
        memory_bytes_max=MEMORY_BYTES_MAX,
    )


if __name__ == "__main__":
    main()

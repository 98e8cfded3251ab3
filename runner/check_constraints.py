"""Compile constraints to find out whether they can be used, in a process of its own: a worker of `common.sandbox`.

What a schema costs is known only once it is compiled, and no library can be stopped meanwhile. So the kernel ends this
process when a compilation exceeds its limits, and the gateway ends it when the client leaves. Runners then compile what
has passed, which takes them as long: nearly all of it does not depend on the vocabulary.

In: {"kind", "text", "free_text", "schemas", "lenient"} as JSON, as in `ConstraintText`. Out: {}, or {"error", "param"}.
"""

import json
import os
from typing import Any

from common.errors import InvalidRequest
from common.sandbox.worker_process import serve_frames
from runner.core.grammar.constraint_text import ConstraintText, lark_text
from runner.core.grammar.token_tree import TokenTree, compile_grammar, error_text

CPU_S_MAX = 2.0
MEMORY_BYTES_MAX = 512 * 1024 * 1024
# Answers of other requests come first; more, and a busy machine leaves it nothing.
NICENESS = 5
# A token for each byte: whether tokens of a vocabulary can write an answer is for its runner to say.
_BYTES = TokenTree([bytes([byte]) for byte in range(256)], excluded=())


def check(constraint: dict[str, Any]) -> dict[str, str | None]:
    """Return what is wrong with a constraint; empty: nothing."""
    key = ConstraintText(
        kind=constraint["kind"],
        text=constraint["text"],
        free_text=constraint["free_text"],
        schemas=tuple(constraint["schemas"].items()),
        lenient=frozenset(constraint["lenient"]),
    )
    try:
        matcher = compile_grammar(lark_text(key, _BYTES), _BYTES)
    except InvalidRequest as error:
        return {"error": error.message, "param": error.param}
    if matcher.is_error():
        return {"error": f"{key.kind} cannot be used: {error_text(matcher)}", "param": key.kind}
    # The work of a first token, which a runner does before the answer.
    if not any(matcher.deep_copy().compute_bitmask()) and not matcher.is_accepting():
        return {"error": f"{key.kind} cannot be used: no answer matches it", "param": key.kind}
    return {}


def main() -> None:
    """Answer frames until the input ends."""
    os.nice(NICENESS)
    serve_frames(
        lambda content: json.dumps(check(json.loads(content))).encode(),
        cpu_s_max=CPU_S_MAX,
        memory_bytes_max=MEMORY_BYTES_MAX,
    )


if __name__ == "__main__":
    main()

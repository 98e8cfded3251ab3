"""Derivation of a layout's context and slots from a request's options."""

CONTEXT_TOKENS_MIN = 4
CONTEXT_TOKENS_MIN_SEEING = 2048  # one image may take most of it
CONTEXT_TOKENS_AUTO = 4096
SLOTS_AUTO = (8, 4, 2, 1)


def wanted_context_tokens(asked: int | None, *, trained: int, sees: bool = False) -> int | None:
    """Return the context that a request needs: at least the minimum, at most the trained one; None: any will do."""
    if asked is None:
        return None
    wanted = max(asked, CONTEXT_TOKENS_MIN_SEEING if sees else CONTEXT_TOKENS_MIN)
    return min(wanted, trained) if trained else wanted


def chosen_context_tokens(wanted: int | None, *, configured: int, trained: int, sees: bool = False) -> int:
    """Return the context of a new replica: the requested, else the configured, else a modest automatic value."""
    if wanted is not None:
        return wanted
    tokens = max(configured or CONTEXT_TOKENS_AUTO, CONTEXT_TOKENS_MIN_SEEING if sees else 0)
    return min(tokens, trained) if trained else tokens


def slot_steps(num_parallel: int) -> tuple[int, ...]:
    """Return the numbers of slots to try, best first. An explicit number is never changed."""
    return (num_parallel,) if num_parallel else SLOTS_AUTO

"""Options of the request that a replica was loaded for, and the context and slots that follow from them.

The replacement of a replica gets the same.
"""

from dataclasses import dataclass, replace

from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Purpose of a load, beside what holds for its model anyway."""

    context_tokens: int | None = None  # of one slot, at least; None: any
    options: LoadOptions = NO_LOAD_OPTIONS

    def like(self, before: "Asked") -> "Asked | None":
        """Merge with the options of a lost replica that this load replaces; None: this load needs another kind.

        What is left open is as before, so that a replica and the one after it serve the same requests.
        """
        own, options = self.options, before.options
        if own.placing not in (NO_LOAD_OPTIONS.placing, options.placing):
            return None
        sizes = [tokens for tokens in (self.context_tokens, before.context_tokens) if tokens is not None]
        return Asked(
            context_tokens=max(sizes, default=None),
            options=replace(
                options,
                batch_tokens=own.batch_tokens or options.batch_tokens,
                threads=own.threads or options.threads,
                use_mmap=options.use_mmap if own.use_mmap is None else own.use_mmap,
            ),
        )


NOTHING_ASKED = Asked()

"""Options of the request that a replica was loaded for. Its replacement gets the same."""

from dataclasses import dataclass, replace

from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions


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

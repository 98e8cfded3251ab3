"""What a request asks of the replica that serves it. Kept with the replica: what takes its place is asked the same."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Everything beside the size of the context."""

    require_gpu: bool = False
    num_gpu: int | None = None
    main_gpu: int | None = None
    # These never cause a reload: they count for a replica that is started anyway.
    batch_tokens: int = 0
    threads: int = 0
    use_mmap: bool | None = None

    @property
    def placing(self) -> tuple[bool, int | None, int | None]:
        """What another load is needed for."""
        return self.require_gpu, self.num_gpu, self.main_gpu


NO_OPTIONS = LoadOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a load is for, beside what holds for its model anyway."""

    context_tokens: int | None = None  # of one slot, at least; None: any
    options: LoadOptions = NO_OPTIONS

    def like(self, before: "Asked") -> "Asked | None":
        """The same in the place of a replica that was loaded for `before`; None: it asks for another kind.

        What is left open is as before, so that a replica and the one after it serve the same requests.
        """
        own, options = self.options, before.options
        if own.placing not in (NO_OPTIONS.placing, options.placing):
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

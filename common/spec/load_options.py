"""Options of a request for its replica, beside the size of the context. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """`require_gpu`, `num_gpu` and `main_gpu` need a replica that was loaded so; the others count for a new one."""

    require_gpu: bool = False
    num_gpu: int | None = None
    main_gpu: int | None = None
    batch_tokens: int = 0
    threads: int = 0
    use_mmap: bool | None = None

    @property
    def placing(self) -> tuple[bool, int | None, int | None]:
        """Return the values that make another load necessary."""
        return self.require_gpu, self.num_gpu, self.main_gpu


NO_LOAD_OPTIONS = LoadOptions()

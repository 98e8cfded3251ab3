"""Settings of one runner."""

from common.settings import PunaSettings
from runner.prefetch import PrefetchMode


class RunnerSettings(PunaSettings):
    """The fields' environment names are PUNA_ + name."""

    engine: str = ""
    """The engine for models whose layout names none."""
    engine_options: str = "{}"
    """Options of the engine `fake`, as JSON."""
    reserve_check: bool = True
    """The sizes of a layout are tried on every device before a weight is read; `false` leaves it to the load."""
    count_swap: bool = False
    """As its host has it: swap counts where the host part of a layout is checked."""
    prefetch: PrefetchMode = PrefetchMode.AUTO
    """Model files on network file systems are read ahead by several readers while they load; `on` for every file,
    `off` for none."""

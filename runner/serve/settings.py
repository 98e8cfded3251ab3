"""Settings of one runner."""

from common.settings import PunaSettings
from runner.prefetch import PrefetchMode


class RunnerSettings(PunaSettings):
    """The fields' environment names are PUNA_ + name."""

    engine: str = ""  # for models whose layout names none
    engine_options: str = "{}"  # of the fake engine, as JSON
    reserve_check: bool = True  # try the sizes of a layout before its weights are read
    prefetch: PrefetchMode = PrefetchMode.AUTO  # read files ahead while they load

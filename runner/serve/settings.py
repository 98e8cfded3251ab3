"""Settings of one runner."""

from common.settings import PunaSettings


class RunnerSettings(PunaSettings):
    """The fields' environment names are PUNA_ + name."""

    engine: str = ""  # for models whose layout names none
    engine_options: str = "{}"  # of the fake engine, as JSON

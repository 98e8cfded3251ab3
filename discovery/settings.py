"""Settings of discovery, read from the environment."""

from common.settings import PunaSettings


class DiscoverySettings(PunaSettings):
    """PUNA_DISCOVERY_LISTEN and what every process reads."""

    discovery_listen: str = "127.0.0.1:7601"
    """Where hosts register and schedulers watch."""

"""Settings of discovery, read from the environment."""

from pathlib import Path

from common.settings import PunaSettings


class DiscoverySettings(PunaSettings):
    """Addresses of discovery, the authority that it issues certificates with, and what every process reads."""

    discovery_listen: str = "127.0.0.1:7601"
    """Where hosts register and schedulers watch."""
    authority: Path | None = None
    """The directory of `puna trust init`, on the machine that has it: nodes renew their certificates over the network.
    With PUNA_JOIN_LISTEN machines join. `puna up --address` sets both."""
    join_listen: str = ""
    """Address at which machines with a token of `puna tokens create` get a certificate, over TLS; empty: none."""
    audit_log: str = ""
    """A file of JSON lines with each certificate that a machine gets here; empty: none is written. A certificate whose
    line cannot be written is refused."""
    home: Path = Path("~/.puna")
    """State of the node; discovery keeps the list of removed nodes there."""

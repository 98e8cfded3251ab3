"""What the gateway reads from the environment."""

from pydantic import field_validator

from common.network import UNIX_PREFIX, split_host_port
from common.settings import PunaSettings


class GatewaySettings(PunaSettings):
    """The fields' environment names are PUNA_ + name."""

    host: str = "127.0.0.1:11434"
    grpc_host: str = "127.0.0.1:11435"
    scheduler_address: str = "127.0.0.1:7602"
    # Origins of web pages that may call from a browser, comma separated; loopback ones always may.
    origins: str = ""
    # The file of API keys; empty: everybody who reaches a listener may do everything.
    api_keys_file: str = ""
    # Longest keep_alive that callers may ask for without the right to manage models.
    keep_alive_max: str = "24h"
    # Requests that wait for a slot, all models of this gateway together.
    max_queue: int = 512
    # How long one waits while every slot is taken; loading does not count.
    queue_wait_s: float = 30.0
    # One request from its first byte to its last.
    request_timeout_s: float = 3600.0
    # A server-sent stream without an answer so far is committed with 200 and kept alive by comments; 0: never.
    stream_commit_s: float = 15.0
    # A load that makes no progress for so long is given up; 0 or less: never.
    load_timeout: str = "5m"

    @field_validator("host", "grpc_host")
    @classmethod
    def _is_listener(cls, address: str) -> str:
        """Refuse what is no address at the start, with the setting's name."""
        if not address.startswith(UNIX_PREFIX):
            split_host_port(address)
        return address

"""What the gateway reads from the environment."""

from pathlib import Path

from pydantic import field_validator

from common.errors import StartupError
from common.network import UNIX_PREFIX, split_host_port
from common.settings import PunaSettings
from gateway.core.chat_template import TemplatePolicy


class GatewaySettings(PunaSettings):
    """The fields' environment names are PUNA_ + name."""

    host: str = "127.0.0.1:11434"
    grpc_host: str = "127.0.0.1:11435"
    scheduler_address: str = "127.0.0.1:7602"
    # Origins of web pages that may call from a browser, comma separated; loopback ones always may.
    origins: str = ""
    # The file of API keys; empty: everybody who reaches a listener may do everything.
    api_keys_file: str = ""
    # Keys made through the API and shared quotas; empty: keys of the file alone, and the whole quota at each gateway.
    redis_url: str = ""
    # Longest keep_alive that callers may ask for without the right to manage models.
    keep_alive_max: str = "24h"
    # Requests that wait for a slot, all models of this gateway together.
    max_queue: int = 512
    # How long one waits while every slot is taken; loading does not count.
    queue_wait_s: float = 30.0
    # Answers whose replica is lost go on at another one; a client can refuse that with `x-puna-resume: 0`.
    resume: bool = True
    # One request from its first byte to its last.
    request_timeout_s: float = 3600.0
    # A server-sent stream without an answer so far is committed with 200 and kept alive by comments; 0: never.
    stream_commit_s: float = 15.0
    # For models without a chat template: "auto" takes the closest family's, "gguf" none; else the path of a Jinja file.
    template: str = "auto"
    # Longest blob that callers may send.
    blob_max_bytes: int = 2**40
    # A load that makes no progress for so long is given up; 0 or less: never.
    load_timeout: str = "5m"

    @field_validator("host", "grpc_host")
    @classmethod
    def _is_listener(cls, address: str) -> str:
        """Refuse what is no address at the start, with the setting's name."""
        if not address.startswith(UNIX_PREFIX):
            split_host_port(address)
        return address


def template_policy(setting: str) -> TemplatePolicy:
    """What PUNA_TEMPLATE means.

    Raises:
        StartupError: it names no file that can be read.
    """
    match setting:
        case "auto":
            return TemplatePolicy()
        case "gguf":
            return TemplatePolicy(only_own=True)
        case "modelfile":
            raise StartupError("PUNA_TEMPLATE: templates in Go's language are shown, not run; name a Jinja file")
        case path:
            try:
                return TemplatePolicy(file_template=Path(path).expanduser().read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise StartupError(f"PUNA_TEMPLATE: {path} cannot be read") from error

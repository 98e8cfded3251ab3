"""Settings of the gateway, read from the environment."""

from pathlib import Path

from pydantic import field_validator

from common.errors import StartupError
from common.network import UNIX_PREFIX, is_private_listener, join_host_port, split_host_port
from common.settings import PunaSettings
from gateway.core.models.chat_template import TemplatePolicy


class GatewaySettings(PunaSettings):
    """The fields' environment names are PUNA_ + name."""

    host: str = "127.0.0.1:11434"
    """Where HTTP is served."""
    grpc_host: str = "127.0.0.1:11435"
    """Where gRPC is served."""
    tls_cert: Path | None = None
    """A certificate chain in PEM, for both listeners; read again when the file changes. None: no TLS."""
    tls_key: Path | None = None
    """Its key in PEM."""
    home: Path = Path("~/.puna")
    """Holds the file `routes`, by which a gateway that starts while no scheduler answers serves what is loaded."""
    scheduler_address: str = "127.0.0.1:7602"
    """Where schedulers are: several with commas between them, or a name with several addresses."""
    origins: str = ""
    """Origins of web pages that may call from a browser, comma separated; loopback ones always may. Without keys and
    TLS, their hosts are also the names with a dot under which the gateway answers, beside this machine's own."""
    api_keys_file: str = ""
    """The file of API keys; empty: every client that reaches a listener may do everything."""
    open_gateway: bool = False
    """Consent to listeners that other machines can reach although the gateway asks for no keys. Instead of `1` also the
    loopback address on which a container's ports are published: any other address is refused."""
    audit_log: str = ""
    """A file of JSON lines with every request and administrative act, never a prompt; empty: none is written. What
    cannot be written there is not done, if it is an administrative act. `puna up` sets it."""
    production: bool = False
    """Refuse every fault of `puna chaos`."""
    redis_url: str = ""
    """Keys made through the API, and quotas and tenants' shares that gateways count together; empty: keys of the file
    alone, and the whole quota at each gateway. `rediss://` has TLS; `redis+sentinel://host:26379,host:26379/name/0`
    names sentinels. Parameters: `?password_file=FILE` (read for each connection), `ssl_ca_certs=FILE`."""
    redis_any_version: bool = False
    """A Redis whose version has a known hole (CVE-2025-49844) is used also over the network."""
    shared_cache: bool = False
    """Prompts that a runner holds serve every tenant, as they do without keys. A common beginning is then computed once
    for all, and the time to first token reveals to a tenant what others have sent."""
    keep_alive_max: str = "24h"
    """Longest `keep_alive` that callers may ask for without the right to manage models."""
    max_queue: int = 512
    """Requests that wait for a slot, all models of this gateway together."""
    queue_wait_s: float = 30.0
    """How long one of them waits while every slot is taken; loading does not count."""
    resume: bool = True
    """Answers whose replica is lost go on at another one; a client can refuse that with `x-puna-resume: 0`."""
    request_timeout_s: float = 3600.0
    """One request from its first byte to its last."""
    stream_commit_s: float = 15.0
    """A server-sent stream that waits longer is opened with 200 and kept alive by comments; 0: never."""
    template: str = "auto"
    """For models without a chat template: `auto` takes that of the closest family and warns, `gguf` refuses, a path
    names a Jinja file that is used instead."""
    blob_max_bytes: int = 2**40
    """The longest file that callers may send."""
    load_timeout: str = "5m"
    """A load that makes no progress for so long is given up; 0 or less: never."""

    @field_validator("open_gateway", mode="before")
    @classmethod
    def _is_loopback(cls, value: object) -> object:
        """Take an address for consent if no other machine reaches it."""
        if not isinstance(value, str) or not any(mark in value for mark in ".:"):
            return value
        if not is_private_listener(join_host_port(value, 0)):
            raise ValueError(f"{value} can be reached from other machines; ask for keys, or set 1")
        return True

    @field_validator("host", "grpc_host")
    @classmethod
    def _is_listener(cls, address: str) -> str:
        """Refuse what is no address at the start, with the setting's name."""
        if not address.startswith(UNIX_PREFIX):
            split_host_port(address)
        return address


def template_policy(setting: str) -> TemplatePolicy:
    """Return the policy that PUNA_TEMPLATE names. Raises: StartupError: it names no file that can be read."""
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

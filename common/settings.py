"""Settings from the environment. Each service derives its own class; unknown PUNA_ names stop the start.

pydantic-settings does not notice a misspelt environment name, so the names are compared here.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from common.nearest import did_you_mean
from common.ollama_environment import from_ollama
from common.startup_error import StartupError

PREFIX = "PUNA_"

# Every name that some process reads, so that services that share an environment (one compose file, one pod template)
# accept each other's. tests/unit/common/test_settings.py holds this list to the settings classes.
KNOWN_NAMES = frozenset(
    PREFIX + name
    for name in (
        "AUDIT_LOG",
        "AUTHORITY",
        "API_KEY",
        "API_KEY_FILE",
        "API_KEYS_FILE",
        "AUTO_KV",
        "BLOB_MAX_BYTES",
        "CONTEXT_LENGTH",
        "COUNT_SWAP",
        "DEBUG",
        "DEVICE_ENV",
        "DEVICE_MAX_BYTES",
        "DEVICE_OVERHEAD",
        "DEVICE_RESERVE",
        "DISCOVERY_ADDRESS",
        "DISCOVERY_LISTEN",
        "ENGINE",
        "ENGINE_OPTIONS",
        "EVICT_FOR_SPEED",
        "EXCLUDED_DEVICES",
        "FLASH_ATTENTION",
        "GRPC_HOST",
        "HOME",
        "HOST",
        "INTEGRATED_GPUS",
        "JOIN_LISTEN",
        "KEEP_ALIVE",
        "KEEP_ALIVE_MAX",
        "KV_CACHE_TYPE",
        "LLM_LIBRARY",
        "LOAD_TIMEOUT",
        "MAX_LOADED_MODELS",
        "MAX_QUEUE",
        "MEASURE",
        "METRICS_LISTEN",
        "MODELS",
        "NODE_ADVERTISE",
        "NODE_ID",
        "NODE_LISTEN",
        "NOPRUNE",
        "NUM_PARALLEL",
        "OLLAMA_ENV",
        "OPEN_GATEWAY",
        "ORIGINS",
        "PLACEMENTS",
        "PLAINTEXT",
        "PREFETCH",
        "PRODUCTION",
        "PROBE_TIMEOUT_S",
        "QUEUE_WAIT_S",
        "REDIS_ANY_VERSION",
        "REDIS_URL",
        "REPROBE_S",
        "REGISTRIES",
        "REGISTRY_AUTH_FILE",
        "REQUEST_TIMEOUT_S",
        "RESERVE_CHECK",
        "RESUME",
        "RPC",
        "RPC_DEVICES",
        "RPC_NODES_MAX",
        "RUNNER_ADVERTISE",
        "RUNNER_LISTEN",
        "SCHED_SPREAD",
        "SCHEDULER_ADDRESS",
        "SCHEDULER_LISTEN",
        "SHARED_CACHE",
        "STATES_DISK",
        "STATES_RAM",
        "STATES_TENANT",
        "STREAM_COMMIT_S",
        "TEMPLATE",
        "TLS_CERT",
        "TLS_KEY",
        "TRUST",
        "TUNNEL_ADVERTISE",
        "TUNNEL_LISTEN",
        "ZYGOTE",
    )
)
# Names of earlier versions, and those that take their value where they are not set themselves.
REPLACED: Mapping[str, tuple[str, ...]] = {"PUNA_INSECURE": ("PUNA_PLAINTEXT", "PUNA_OPEN_GATEWAY")}


class PunaSettings(BaseSettings):
    """Settings of every process. Subclasses add fields; the environment name is PUNA_ + the field's name."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    debug: bool = False
    """More log events."""
    plaintext: bool = False
    """For tests: processes listen for other machines without TLS. Every machine that reaches them can then read
    prompts and command nodes."""
    trust: Path | None = None
    """The directory with the certificate of this process (`ca.crt`, `tls.crt`, `tls.key`), as `puna trust issue` writes
    it: mutual TLS on every TCP connection between processes of the cluster. Read again when the files change. For
    `puna up` the directory above those of the roles."""
    metrics_listen: str = "127.0.0.1:0"
    """Address of the Prometheus page of the process; port 0 takes any free one. Other machines need a certificate of
    the role `metrics` or `operator`."""
    ollama_env: bool = True
    """Where a name is not set, its `OLLAMA_` equivalent counts; `false`: never."""

    @classmethod
    def load(cls) -> Self:
        """Read the environment.

        Raises:
            StartupError: an unknown PUNA_ name, or a value that does not parse; the text names it.
        """
        known = KNOWN_NAMES | REPLACED.keys()
        unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
        if unknown:
            hint = "docs/settings.md lists all"
            faults = [f"unknown setting {name}{did_you_mean(name, KNOWN_NAMES, else_say=hint)}" for name in unknown]
            raise StartupError(" ".join(faults))
        try:
            with _filled_in(cls.taken_over() | _replacements()):
                return cls()
        except SettingsError as error:  # a value that should be JSON and is none
            field = str(error).split('"')[1] if '"' in str(error) else ""
            raise StartupError(f"{PREFIX}{field.upper()} is not valid JSON") from error
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
            raise StartupError(f"{name}: {first['msg'].removeprefix('Value error, ')}") from error

    @classmethod
    def taken_over(cls) -> dict[str, str]:
        """By name: what stands in the environment under OLLAMA_ names only. PUNA_OLLAMA_ENV=0: nothing."""
        if os.environ.get(f"{PREFIX}OLLAMA_ENV", "1").strip().lower() in ("0", "false"):
            return {}
        names = frozenset(PREFIX + field.upper() for field in cls.model_fields)
        return from_ollama(os.environ, names, prefix=PREFIX)


def _replacements() -> dict[str, str]:
    names = [(old, new) for old, by in REPLACED.items() if old in os.environ for new in by]
    return {new: os.environ[old] for old, new in names if new not in os.environ}


@contextmanager
def _filled_in(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables while settings are read."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]

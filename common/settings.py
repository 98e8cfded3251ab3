"""Settings from the environment. Each service derives its own class; unknown PUNA_ names stop the start.

pydantic-settings does not notice a misspelt environment name, so the names are compared here.
"""

import os
from typing import Self

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from common.errors import StartupError

PREFIX = "PUNA_"

# Every name that some process reads, so that services that share an environment (one compose file, one pod template)
# accept each other's. tests/unit/common/test_settings.py holds this list to the settings classes.
KNOWN_NAMES = frozenset(
    PREFIX + name
    for name in (
        "API_KEY",
        "API_KEYS_FILE",
        "AUTO_KV",
        "BLOB_MAX_BYTES",
        "BLOB_MAX_BYTES",
        "CONTEXT_LENGTH",
        "DEBUG",
        "DEVICE_ENV",
        "DEVICE_MAX_BYTES",
        "DEVICE_OVERHEAD",
        "DISCOVERY_ADDRESS",
        "DISCOVERY_LISTEN",
        "ENGINE",
        "ENGINE_OPTIONS",
        "EVICT_FOR_SPEED",
        "EXCLUDED_DEVICES",
        "GRPC_HOST",
        "HOME",
        "HOST",
        "INSECURE",
        "INTEGRATED_GPUS",
        "KEEP_ALIVE",
        "KEEP_ALIVE_MAX",
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
        "ORIGINS",
        "PLACEMENTS",
        "PREFETCH",
        "QUEUE_WAIT_S",
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
        "SCHEDULER_ADDRESS",
        "SCHEDULER_LISTEN",
        "STREAM_COMMIT_S",
        "TEMPLATE",
        "TUNNEL_ADVERTISE",
        "TUNNEL_LISTEN",
    )
)


class PunaSettings(BaseSettings):
    """What every process reads. Subclasses add their own fields; the environment name is PUNA_ + the field's name."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    debug: bool = False
    # Listeners that other machines can reach need TLS or this explicit consent.
    insecure: bool = False
    # Where this process serves its Prometheus page; port 0 takes any free one.
    metrics_listen: str = "127.0.0.1:0"

    @classmethod
    def load(cls) -> Self:
        """Read the environment.

        Raises:
            StartupError: an unknown PUNA_ name, or a value that does not parse; the text names it.
        """
        unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in KNOWN_NAMES)
        if unknown:
            raise StartupError(f"unknown setting {unknown[0]}")
        try:
            return cls()
        except SettingsError as error:  # a value that should be JSON and is none
            field = str(error).split('"')[1] if '"' in str(error) else ""
            raise StartupError(f"{PREFIX}{field.upper()} is not valid JSON") from error
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
            raise StartupError(f"{name}: {first['msg']}") from error

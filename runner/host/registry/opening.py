"""Puts together what fetches models for a node, from its settings."""

import os
from collections.abc import Mapping
from pathlib import Path

from common.errors import StartupError
from runner.core.registry.allowed import parse_registries
from runner.core.registry.credentials import Credentials, parse_credentials
from runner.host.registry.blob_jobs import BlobJobs
from runner.host.registry.client import Secrets
from runner.host.registry.headers import HeaderFiles
from runner.host.registry.jobs import PullJobs, PullSettings
from runner.host.registry.origin import Origins
from runner.host.settings import HostSettings
from runner.host.store.store import Store

HUB_TOKEN_NAME = "HF_TOKEN"  # noqa: S105  # the name of a variable; the hub's own tools read it, too


def open_fetching(settings: HostSettings, store: Store, cache_directory: Path) -> tuple[PullJobs, Origins]:
    """Open pulls by name, and fetches from other nodes; both share the blobs that are on their way.

    Raises:
        StartupError: the file with credentials cannot be used.
    """
    secrets = Secrets(
        by_host=_credentials(settings.registry_auth_file), hub_token=os.environ.get(HUB_TOKEN_NAME, "").strip()
    )
    pulling = PullSettings(registries=parse_registries(settings.registries), secrets=secrets)
    jobs = BlobJobs(store.blobs, pulling.pace)
    pulls = PullJobs(pulling, store, jobs)
    return pulls, Origins(store, jobs, HeaderFiles(cache_directory / "headers"), pulls)


def _credentials(path: Path | None) -> Mapping[str, Credentials]:
    if path is None:
        return {}
    try:
        return parse_credentials(path.expanduser().read_bytes())
    except OSError as error:
        raise StartupError(f"PUNA_REGISTRY_AUTH_FILE: {path}: {error.strerror}") from error
    except ValueError as error:
        raise StartupError(f"PUNA_REGISTRY_AUTH_FILE: {path}: {error}") from error

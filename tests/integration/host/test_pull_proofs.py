"""Registries that want to know who asks: Basic, tokens, and the places that a secret never reaches."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import RegistryFailed
from runner.core.registry.credentials import Credentials
from runner.host.registry.client import Secrets
from tests.integration.host.pulling import KIB, open_store, random_bytes
from tests.registry import (
    HTPASSWD,
    PASSWORD,
    USER,
    Pushed,
    RunningRegistry,
    harmful_proxy,
    needs_registry,
    push,
    running_registry,
)
from tests.registry_tokens import SERVICE, TokenServer, token_server

pytestmark = needs_registry
READER = Credentials(user=USER, password=PASSWORD)
WEIGHTS = random_bytes(100 * KIB, seed=2)


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    directory = tmp_path_factory.mktemp("basic")
    (directory / "htpasswd").write_text(HTPASSWD)
    lines = f"auth: {{htpasswd: {{realm: test, path: {directory / 'htpasswd'}}}}}\n"
    with running_registry(directory, auth_lines=lines, auth=(USER, PASSWORD)) as running:
        yield running


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with token_server() as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, tokens: TokenServer) -> Iterator[RunningRegistry]:
    directory = tmp_path_factory.mktemp("guarded")
    with running_registry(directory, auth_lines=tokens.auth_lines(directory)) as running:
        yield running


@pytest.fixture(scope="module")
def behind_tokens(guarded: RunningRegistry, tokens: TokenServer) -> Pushed:
    token = tokens.token("team/model", ["pull", "push"])
    return push(guarded, "team/model", WEIGHTS, headers={"Authorization": f"Bearer {token}"})


async def test_basic_credentials_come_from_the_operators_file(tmp_path: Path, basic: RunningRegistry) -> None:
    pushed = push(basic, "team/model", WEIGHTS)
    secrets = Secrets(by_host={basic.host: READER})
    async with open_store(tmp_path, f"http://{basic.host}", secrets=secrets) as store:
        await store.pull(pushed.name)
        assert store.blobs.path(pushed.digest).read_bytes() == WEIGHTS


@pytest.mark.parametrize("wrong", [None, Credentials(user=USER, password="guessed")])
async def test_without_the_right_credentials_nothing_comes(
    tmp_path: Path, basic: RunningRegistry, wrong: Credentials | None
) -> None:
    pushed = push(basic, "team/model", WEIGHTS)
    secrets = Secrets(by_host={basic.host: wrong} if wrong is not None else {})
    async with open_store(tmp_path, f"http://{basic.host}", secrets=secrets) as store:
        with pytest.raises(RegistryFailed, match="status 401") as caught:
            await store.pull(pushed.name)
        assert "guessed" not in str(caught.value)
        assert store.manifests.names() == []


async def test_a_token_is_fetched_where_the_operator_says_that_it_may(
    tmp_path: Path, guarded: RunningRegistry, tokens: TokenServer, behind_tokens: Pushed
) -> None:
    async with open_store(tmp_path, f"http://{guarded.host}={tokens.address}") as store:
        tokens.asked.clear()
        await store.pull(behind_tokens.name)
        assert store.blobs.path(behind_tokens.digest).read_bytes() == WEIGHTS
        assert tokens.asked == [{"service": [SERVICE], "scope": ["repository:team/model:pull"]}]


async def test_credentials_go_to_the_tokens_server_and_the_token_to_the_registry(
    tmp_path: Path, guarded: RunningRegistry, tokens: TokenServer, behind_tokens: Pushed
) -> None:
    secrets = Secrets(by_host={guarded.host: READER})
    async with open_store(tmp_path, f"http://{guarded.host}={tokens.address}", secrets=secrets) as store:
        tokens.authorizations.clear()
        await store.pull(behind_tokens.name)
        expected = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        assert tokens.authorizations == [f"Basic {expected}"]


async def test_a_token_from_another_host_is_not_fetched(
    tmp_path: Path, guarded: RunningRegistry, tokens: TokenServer, behind_tokens: Pushed
) -> None:
    secrets = Secrets(by_host={guarded.host: READER})
    async with open_store(tmp_path, f"http://{guarded.host}", secrets=secrets) as store:
        tokens.asked.clear()
        with pytest.raises(RegistryFailed, match="not its own"):
            await store.pull(behind_tokens.name)
        assert tokens.asked == []


async def test_the_hubs_token_goes_to_no_other_registry(tmp_path: Path, basic: RunningRegistry) -> None:
    async with harmful_proxy(basic.host) as proxy:
        secrets = Secrets(hub_token="hf_secret")
        async with open_store(tmp_path, f"http://{proxy.address}", secrets=secrets) as store:
            with pytest.raises(RegistryFailed):
                await store.pull(f"{proxy.address}/team/model:latest")
        assert proxy.authorizations
        assert all("hf_secret" not in seen for seen in proxy.authorizations)

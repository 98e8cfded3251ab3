"""Cache salts that gateways send to runners: one per tenant."""

from collections.abc import Callable
from typing import Any

from protos import runner_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.test_gateway_keys import BODY, CHAT, Keys, bearer, keys, start

__all__ = ["keys", "start"]  # fixtures


async def asked_for(cluster: Cluster, key: str = "") -> runner_pb2.GenerateRequest:
    """Send a request with a key and return the runner's."""
    answer = await cluster.http.post(CHAT, json=BODY, headers=bearer(key) if key else {})
    assert answer.status_code == 200, answer.text
    return cluster.runner.requests[-1]


async def test_each_tenant_has_a_salt_of_its_own_at_every_gateway(
    keys: Keys,  # the fixture
    start: Callable[..., Any],
) -> None:
    ada, bob = keys.create("ada"), keys.create("bob")
    async with start() as cluster, start() as other:
        adas, bobs = await asked_for(cluster, ada), await asked_for(cluster, bob)
        assert adas.cache_salt
        assert bobs.cache_salt
        assert adas.cache_salt != bobs.cache_salt
        assert (await asked_for(other, ada)).cache_salt == adas.cache_salt
        assert "ada" not in adas.cache_salt


async def test_tenants_share_what_runners_hold_where_that_is_set(
    keys: Keys,
    start: Callable[..., Any],
) -> None:
    ada, bob = keys.create("ada"), keys.create("bob")
    async with start(shared_cache=True) as cluster:
        adas, bobs = await asked_for(cluster, ada), await asked_for(cluster, bob)
        assert (adas.cache_salt, bobs.cache_salt) == ("", "")


async def test_without_keys_there_is_no_salt(start_cluster: StartCluster) -> None:
    async with start_cluster() as cluster:
        assert (await asked_for(cluster)).cache_salt == ""

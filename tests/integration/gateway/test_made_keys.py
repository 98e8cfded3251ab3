"""Keys made through the API of two gateways that share a real Redis, and nothing else."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.commands.keys import create
from common.trust.roles import Role
from gateway.core.keys.key_records import sealed_key
from gateway.core.keys.keys import Key, Scope
from gateway.keys.key_store import cache_path, pepper_path, read_private
from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.redis_server import RedisServer, redis_server
from tests.waiting import Stopwatch, next_look

KEYS = "/puna/v1/keys"
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
EVERYTHING = tuple(str(scope) for scope in Scope)
SEEN_WITHIN_S = 5.0


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@dataclass
class Two:
    """Two gateways, each with its own copy of the file of keys. `admin` is in the file."""

    first: Cluster
    second: Cluster
    redis: RedisServer
    admin: str
    files: tuple[Path, Path]

    async def make(self, gateway: Cluster | None = None, by: str | None = None, **wish: Any) -> dict[str, Any]:
        answer = await (gateway or self.first).http.post(
            KEYS, json={"owner": "bob", **wish}, headers=bearer(by or self.admin)
        )
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made


async def status(cluster: Cluster, key: str) -> int:
    answer: httpx.Response = await cluster.http.get("/api/tags", headers=bearer(key))
    return answer.status_code


async def within(condition: Callable[[], Awaitable[bool]], deadline_s: float = SEEN_WITHIN_S) -> None:
    watch = Stopwatch()
    while not await condition():
        assert not watch.is_past(deadline_s)
        await next_look()


def make_file(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    create({"owner": "root", "tenant": "root", "scopes": list(EVERYTHING)}, path, as_json=True)
    key: str = json.loads(capsys.readouterr().out)["key"]
    return key


@pytest.fixture
async def two(tmp_path: Path, start_cluster: StartCluster, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Two]:
    files = (tmp_path / "one" / "keys.json", tmp_path / "two" / "keys.json")
    admin = make_file(files[0], capsys)
    files[1].parent.mkdir()
    for source, target in ((files[0], files[1]), (pepper_path(files[0]), pepper_path(files[1]))):
        shutil.copy2(source, target)
    async with redis_server() as redis:

        @asynccontextmanager
        async def gateway(file: Path) -> AsyncIterator[Cluster]:
            async with start_cluster(api_keys_file=str(file), redis_url=redis.url_of(Role.GATEWAY)) as cluster:
                yield cluster

        async with gateway(files[0]) as first, gateway(files[1]) as second:
            running = Two(first, second, redis, admin, files)
            await within(lambda: _both_know_both(running))
            yield running


async def _both_know_both(two: Two) -> bool:
    books = [one.gateway.service.made_keys.book for one in (two.first, two.second) if one.gateway.service.made_keys]
    return [book.gateways for book in books] == [2, 2]


async def test_a_key_made_at_one_gateway_opens_both_and_revoked_at_one_opens_neither(two: Two) -> None:
    made = await two.make(expires="1h", models=["demo"], requests_per_minute=100, band="high", tenant="team")
    assert made["tenant"] == "team"
    assert made["models"] == ["demo"]
    assert made["expires"] == made["created"] + 3600
    assert (made["state"], made["source"], made["band"]) == ("active", "api", "high")
    key = made["key"]
    assert await status(two.first, key) == 200
    await within(lambda: _knows(two, made))
    assert await status(two.second, key) == 200
    revoked = await two.second.http.delete(f"{KEYS}/{made['id']}", headers=bearer(two.admin))
    assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
    assert await status(two.second, key) == 401
    await within(lambda: _is(two.first, key, 401))
    # A tombstone, not an absence; and revoking twice is no error.
    listed = (await two.first.http.get(KEYS, headers=bearer(two.admin))).json()["keys"]
    assert {one["id"]: one["state"] for one in listed}[made["id"]] == "revoked"
    again = await two.first.http.delete(f"{KEYS}/{made['id']}", headers=bearer(two.admin))
    assert again.json()["revoked"] == revoked.json()["revoked"]


async def _knows(two: Two, made: dict[str, Any]) -> bool:
    """Return True if the second gateway has the key. It does not try the key: too many refusals are a reason to
    refuse."""
    listed = (await two.second.http.get(KEYS, headers=bearer(two.admin))).json()["keys"]
    return made["id"] in {one["id"] for one in listed}


async def _is(cluster: Cluster, key: str, wanted: int) -> bool:
    return await status(cluster, key) == wanted


async def test_an_emptied_redis_neither_opens_nor_locks_the_door(two: Two) -> None:
    good, bad = await two.make(), await two.make(owner="eve")
    await two.first.http.delete(f"{KEYS}/{bad['id']}", headers=bearer(two.admin))
    await within(lambda: _knows(two, good))
    await within(lambda: _is(two.second, bad["key"], 401))
    async with two.redis.client() as client:
        await client.flushall()
        for cluster in (two.first, two.second):
            assert await status(cluster, good["key"]) == 200
            assert await status(cluster, bad["key"]) == 401

        async def given_back() -> bool:
            made, revoked = await client.hkeys("{puna-keys}:made"), await client.hkeys("{puna-keys}:revoked")
            return (sorted(made), revoked) == (sorted([good["id"], bad["id"]]), [bad["id"]])

        await within(given_back)


async def test_a_dead_redis_changes_nothing_for_known_keys_and_a_revocation_is_told_later(two: Two) -> None:
    made = await two.make()
    await within(lambda: _knows(two, made))
    assert await status(two.second, made["key"]) == 200
    await two.redis.kill()
    for cluster in (two.first, two.second):
        assert await status(cluster, made["key"]) == 200
        assert (await cluster.http.post(CHAT, json=BODY, headers=bearer(made["key"]))).status_code == 200
        assert (await cluster.http.get("/readyz")).status_code == 200
    refused = await two.first.http.post(KEYS, json={"owner": "new"}, headers=bearer(two.admin))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")
    assert (await two.first.http.get(KEYS, headers=bearer(two.admin))).status_code == 200
    revoked = await two.first.http.delete(f"{KEYS}/{made['id']}", headers=bearer(two.admin))
    assert revoked.status_code == 503
    assert "revoked here" in revoked.json()["error"]["message"]
    assert await status(two.first, made["key"]) == 401
    await two.redis.start()  # empty, as after a crash without a disk
    await within(lambda: _is(two.second, made["key"], 401))


async def test_a_gateway_that_starts_without_redis_knows_its_keys_from_the_cache(
    two: Two, start_cluster: StartCluster
) -> None:
    good, bad = await two.make(), await two.make(owner="eve")
    await two.first.http.delete(f"{KEYS}/{bad['id']}", headers=bearer(two.admin))
    cache = cache_path(two.files[0])
    assert cache.stat().st_mode & 0o777 == 0o600
    assert good["key"].split("_")[2] not in cache.read_text()
    await two.redis.kill()
    async with start_cluster(api_keys_file=str(two.files[0]), redis_url=two.redis.url_of(Role.GATEWAY)) as third:
        assert await status(third, good["key"]) == 200
        assert await status(third, bad["key"]) == 401


async def test_who_writes_to_redis_makes_no_key_widens_none_and_revokes_none(two: Two) -> None:
    made = await two.make(scopes=["models:read"])
    pepper = read_private(pepper_path(two.files[0]))
    forged = Key(id="Forged00", digest="0" * 64, owner="eve", tenant="eve", scopes=frozenset(Scope))
    async with two.redis.client() as client:
        text = await client.hget("{puna-keys}:made", made["id"])
        await client.hset("{puna-keys}:made", "Forged00", sealed_key(b"another pepper" * 3, forged))
        await client.hset("{puna-keys}:made", "Wider000", text.replace("models:read", "admin:keys"))
        await client.hset("{puna-keys}:made", "Moved000", text)
        await client.hset("{puna-keys}:revoked", made["id"], "00 " + made["id"] + " 5")
        await client.set("{puna-keys}:revision", "new")
        await within(lambda: _noticed(two))
    assert pepper not in text.encode()
    assert await status(two.first, made["key"]) == 200
    listed = (await two.second.http.get(KEYS, headers=bearer(two.admin))).json()["keys"]
    assert {one["id"] for one in listed} == {made["id"], two.admin.split("_")[1]}


async def _noticed(two: Two) -> bool:
    made = [one.gateway.service.made_keys for one in (two.first, two.second)]
    return all(one is not None and len(one.store.records.refused) >= 3 for one in made)


async def test_an_owner_has_two_keys_that_are_good_also_if_gateways_race(two: Two) -> None:
    answers = await asyncio.gather(
        *(
            cluster.http.post(KEYS, json={"owner": "bob"}, headers=bearer(two.admin))
            for cluster in (two.first, two.second)
            for _ in range(3)
        )
    )
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses.count(200) == 2
    assert set(statuses) <= {200, 400, 503}
    made = next(answer.json() for answer in answers if answer.status_code == 200)
    await two.first.http.delete(f"{KEYS}/{made['id']}", headers=bearer(two.admin))
    await two.make(two.second)


async def test_nobody_gives_more_than_they_have_and_other_tenants_do_not_exist(two: Two) -> None:
    lead = (await two.make(owner="lead", tenant="blue", scopes=["admin:keys", "infer"], models=["demo"]))["key"]
    foreign = await two.make(owner="far", tenant="red")

    async def refused(**wish: Any) -> str:
        answer = await two.first.http.post(KEYS, json={"owner": "x", "tenant": "blue", **wish}, headers=bearer(lead))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
        text: str = answer.json()["error"]["message"]
        return text

    assert "admin:cluster" in await refused(scopes=["admin:cluster"], models=["demo"])
    assert "tenant" in await refused(tenant="red", scopes=["infer"], models=["demo"])
    assert "models" in await refused(scopes=["infer"])
    assert "models" in await refused(scopes=["infer"], models=["demo", "other"])
    await two.make(by=lead, owner="x", tenant="blue", scopes=["infer"], models=["Demo:latest"])
    seen = (await two.first.http.get(KEYS, headers=bearer(lead))).json()["keys"]
    assert {one["tenant"] for one in seen} == {"blue"}
    for method in ("GET", "DELETE"):
        answer = await two.first.http.request(method, f"{KEYS}/{foreign['id']}", headers=bearer(lead))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "key_not_found")
        nothing = await two.first.http.request(method, f"{KEYS}/Nothing0", headers=bearer(lead))
        assert nothing.json() == answer.json()


async def test_the_file_decides_about_its_own_keys(two: Two) -> None:
    file_id = two.admin.split("_")[1]
    answer = await two.first.http.delete(f"{KEYS}/{file_id}", headers=bearer(two.admin))
    assert answer.status_code == 400
    assert "puna keys revoke" in answer.json()["error"]["message"]
    assert (await two.first.http.get(f"{KEYS}/{file_id}", headers=bearer(two.admin))).json()["source"] == "file"


async def test_the_last_use_is_known_to_every_gateway(two: Two) -> None:
    made = await two.make()
    await within(lambda: _knows(two, made))
    assert await status(two.second, made["key"]) == 200

    async def told() -> bool:
        answer = await two.first.http.get(f"{KEYS}/{made['id']}", headers=bearer(two.admin))
        return bool(answer.json()["last_used"]) and answer.json()["last_used"] >= made["created"]

    await within(told)


async def test_a_wish_that_means_nothing_is_refused(two: Two) -> None:
    wishes: list[tuple[dict[str, Any], str]] = [
        ({"owner": "no name"}, "owner"),
        ({"scopes": ["everything"]}, "everything"),
        ({"networks": ["nowhere"]}, "nowhere"),
        ({"expires": "soon"}, "expires"),
        ({"expires": "10ms"}, "expires"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"band": "best"}, "band"),
        ({"models": ["../x"]}, "../x"),
    ]
    for wish, text in wishes:
        answer = await two.first.http.post(KEYS, json={"owner": "bob", **wish}, headers=bearer(two.admin))
        assert answer.status_code == 400
        assert text in answer.json()["error"]["message"]


async def test_without_redis_the_routes_say_what_is_missing(
    tmp_path: Path, start_cluster: StartCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = make_file(tmp_path / "keys.json", capsys)
    async with start_cluster(api_keys_file=str(tmp_path / "keys.json")) as cluster:
        for method, path in (("GET", KEYS), ("POST", KEYS), ("GET", KEYS + "/x"), ("DELETE", KEYS + "/x")):
            answer = await cluster.http.request(method, path, headers=bearer(admin))
            assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_supported")
            assert "PUNA_REDIS_URL" in answer.json()["error"]["message"]

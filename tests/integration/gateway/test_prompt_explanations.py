"""`puna explain --prompt` and its route: where a prompt would go, and who may see what is held of it."""

from collections.abc import Callable
from typing import Any

from common.spec.prompt_names import BLOCK_BYTES, name_prompt
from protos import cluster_pb2, runner_pb2
from tests.integration.gateway.conftest import StartCluster, eventually
from tests.integration.gateway.scripted import ScriptedRunner
from tests.integration.gateway.test_gateway_keys import Keys, bearer, keys, start

__all__ = ["keys", "start"]  # fixtures
PAGE = "/puna/v1/explain/prompt"
TEXT = "a long text of one tenant " * 20  # 520 bytes


class HoldingRunner(ScriptedRunner):
    """Holds every prompt that it was sent, in a slot and in a tier, and has measured its speed."""

    def status(self) -> cluster_pb2.RunnerStatus:
        status = super().status()
        status.pace.token_s, status.pace.call_s, status.pace.bytes_per_token = 0.001, 0.01, 1.0
        status.held_prefixes.SetInParent()
        for request in self.requests:
            parts = [(segment.text or segment.literal).encode() for segment in request.prompt]
            names = name_prompt(parts, salt=request.cache_salt).names
            status.held_prefixes.names.extend(names[:1])
            status.held_prefixes.saved.add(names=names, restore_ms=5, tier="disk")
        return status

    async def Tokenize(  # noqa: N802
        self, request: runner_pb2.TokenizeRequest, context: Any
    ) -> runner_pb2.TokenizeResponse:
        """A begin token without bytes, then a token for each byte."""
        text = "".join(segment.text or segment.literal for segment in request.segments).encode()
        return runner_pb2.TokenizeResponse(ids=range(len(text) + 1), pieces=[b"", *(bytes([one]) for one in text)])


async def test_a_tenant_sees_what_is_held_of_its_own_prompts_alone(keys: Keys, start: Callable[..., Any]) -> None:
    ada, bob = keys.create("ada"), keys.create("bob")
    runner = HoldingRunner()
    async with start(runner=runner) as cluster:

        async def explained(key: str) -> Any:
            answer = await cluster.http.post(PAGE, json={"model": "demo", "text": TEXT}, headers=bearer(key))
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert (await explained(ada))["replicas"][0]["held"] == []
        body = {"model": "demo", "prompt": TEXT, "raw": True, "stream": False}
        assert (await cluster.http.post("/api/generate", json=body, headers=bearer(ada))).status_code == 200

        pool = cluster.gateway.service.inference.dispatcher.pool
        await eventually(lambda: any(one.holdings for one in pool._connections.values()))
        after = await explained(ada)
        (row,) = after["replicas"]
        assert after["prompt_tokens"] == len(TEXT) + 1
        places = {one["place"]: (one["tokens"], one["restore_ms"]) for one in row["held"]}
        assert places == {"slots": (BLOCK_BYTES + 1, None), "disk": (len(TEXT) + 1, 5.0)}
        assert (row["is_chosen"], row["goes_on_from"]) == (True, "disk")
        assert row["first_token_ms"] == 5 + 1 + 10, "restored, then one input of one call"
        (bobs,) = (await explained(bob))["replicas"]
        assert (bobs["held"], bobs["goes_on_from"], bobs["first_token_ms"]) == ([], None, len(TEXT) + 10)


async def test_a_model_without_replica_and_a_bad_body_are_explained(start_cluster: StartCluster) -> None:
    async with start_cluster(warm=False) as cluster:
        answer = (await cluster.http.post(PAGE, json={"model": "demo", "text": TEXT})).json()
        assert (answer["replicas"], answer["prompt_tokens"], answer["prompt_bytes"]) == ([], None, len(TEXT))
        assert "would load the model" in answer["message"]
        for body, text in (
            ({"model": "demo"}, "give either text or messages"),
            ({"model": "demo", "text": "x", "messages": []}, "give either text or messages"),
            ({"model": "demo", "messages": []}, "messages must not be empty"),
            ({"model": "demo", "text": "x", "promt": 1}, "promt"),
        ):
            refused = await cluster.http.post(PAGE, json=body)
            assert refused.status_code == 400
            assert text in refused.text
        assert (await cluster.http.post(PAGE, json={"model": "nothing", "text": "x"})).status_code == 404

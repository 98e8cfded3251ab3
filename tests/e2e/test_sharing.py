"""Many streams at once: each as if it were alone, all of them in the same batches."""

import json
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx

from protos import inference_pb2, inference_pb2_grpc
from tests.cluster import Cluster, metric_sum
from tests.waiting import wait_until

STREAMS = 16


def ask(cluster: Cluster, question: str) -> str:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "options": {"temperature": 0, "num_predict": 60},
    }
    with httpx.stream("POST", cluster.url + "/api/chat", json=body, timeout=120) as response:
        assert response.status_code == 200
        rows = [json.loads(line) for line in response.iter_lines()]
    assert [row["done"] for row in rows].count(True) == 1
    return "".join(row["message"]["content"] for row in rows)


def test_sixteen_streams_equal_their_single_runs_and_share_batches(cluster: Cluster, answers: dict[str, str]) -> None:
    questions = list(answers)[:STREAMS]
    assert len(questions) == STREAMS
    alone = [ask(cluster, question) for question in questions]
    before = cluster.runner_metrics()
    with ThreadPoolExecutor(STREAMS) as pool:
        together = list(pool.map(lambda question: ask(cluster, question), questions))
    after = cluster.runner_metrics()
    assert together == alone
    steps, rows = (
        metric_sum(after, f"puna_runner_batch_sequences_{part}")
        - metric_sum(before, f"puna_runner_batch_sequences_{part}")
        for part in ("count", "sum")
    )
    assert rows / steps > 2  # sequences per decode call
    wait_until(lambda: cluster.slots_busy() == 0, deadline_s=5, what="all slots free")


def end_tokens(cluster: Cluster) -> list[int]:
    """Ids of the demo model's end tokens."""
    with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.TokenizeTextRequest(model="demo", text="<|im_end|><|endoftext|>")
        return list(stub.Tokenize(request, timeout=60).ids)


def test_a_client_that_leaves_frees_its_slot(cluster: Cluster) -> None:
    endless = {
        "num_predict": 10000,
        "temperature": 1.5,
        "seed": 7,
        "logit_bias": {str(token): -100 for token in end_tokens(cluster)},
    }
    body = {"model": "demo", "prompt": "Tell me a story.", "options": endless}
    with httpx.stream("POST", cluster.url + "/api/generate", json=body, timeout=60) as response:
        next(response.iter_lines())
        wait_until(lambda: cluster.slots_busy() == 1, deadline_s=5, what="the slot is busy")
    wait_until(lambda: cluster.slots_busy() == 0, deadline_s=2, what="the slot is free after the client left")
    cut = metric_sum(cluster.runner_metrics(), "puna_runner_generated_tokens_total")
    assert metric_sum(cluster.runner_metrics(), "puna_runner_generated_tokens_total") == cut

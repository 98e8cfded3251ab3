"""Many streams at once: each as if it were alone, all of them in the same batches."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.cluster import Cluster, endless, metric_sum
from tests.waiting import wait_until

STREAMS = 16
TOGETHER = 4
CALLS_MIN = 200
BATCH_METRICS = ("puna_runner_batch_sequences_count", "puna_runner_batch_sequences_sum")


def ask(cluster: Cluster, question: str, **options: object) -> str:
    """The answer to a question at temperature 0."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "options": {"temperature": 0, **options},
    }
    with httpx.stream("POST", cluster.url + "/api/chat", json=body, timeout=240) as response:
        assert response.status_code == 200
        rows = [json.loads(line) for line in response.iter_lines()]
    assert [row["done"] for row in rows].count(True) == 1
    return "".join(row["message"]["content"] for row in rows)


def calls_and_rows(before: str, after: str) -> tuple[float, float]:
    """Decode calls between two looks at the runner's metrics, and the sequences in them."""
    calls, rows = (metric_sum(after, name) - metric_sum(before, name) for name in BATCH_METRICS)
    return calls, rows


def listen(cluster: Cluster, question: str, over: threading.Event) -> None:
    """Read an answer that does not end by itself."""
    body = {"model": "demo", "prompt": question, "options": endless(cluster)}
    with httpx.stream("POST", cluster.url + "/api/generate", json=body, timeout=60) as response:
        for _ in response.iter_lines():
            if over.is_set():
                return


def test_sixteen_streams_equal_their_single_runs(cluster: Cluster, answers: dict[str, str]) -> None:
    questions = list(answers)[:STREAMS]
    assert len(questions) == STREAMS
    alone = [ask(cluster, question) for question in questions]
    with ThreadPoolExecutor(STREAMS) as pool:
        together = list(pool.map(lambda question: ask(cluster, question), questions))
    assert together == alone == [answers[question] for question in questions]
    wait_until(lambda: cluster.slots_busy() == 0, deadline_s=20, what="all slots free")


def test_streams_that_run_together_share_decode_calls(cluster: Cluster, answers: dict[str, str]) -> None:
    over = threading.Event()
    with ThreadPoolExecutor(TOGETHER) as pool:
        streams = [pool.submit(listen, cluster, question, over) for question in list(answers)[:TOGETHER]]
        try:
            wait_until(lambda: cluster.slots_busy() == TOGETHER, deadline_s=60, what="all of them run")
            before = cluster.runner_metrics()
            wait_until(
                lambda: calls_and_rows(before, cluster.runner_metrics())[0] >= CALLS_MIN,
                deadline_s=60,
                what="they go on",
            )
            calls, rows = calls_and_rows(before, cluster.runner_metrics())
        finally:
            over.set()
        for stream in streams:
            stream.result()
    # Without sharing this is 1. A stream rests while its client is slow to read, so it may be less than all of them.
    assert rows / calls > 2


def test_a_client_that_leaves_frees_its_slot(cluster: Cluster) -> None:
    body = {"model": "demo", "prompt": "Tell me a story.", "options": endless(cluster)}
    with httpx.stream("POST", cluster.url + "/api/generate", json=body, timeout=60) as response:
        lines = response.iter_lines()  # held: a dropped iterator closes the connection
        next(lines)
        wait_until(lambda: cluster.slots_busy() == 1, deadline_s=20, what="the slot is busy")
    wait_until(lambda: cluster.slots_busy() == 0, deadline_s=20, what="the slot is free after the client left")
    cut = metric_sum(cluster.runner_metrics(), "puna_runner_generated_tokens_total")
    assert metric_sum(cluster.runner_metrics(), "puna_runner_generated_tokens_total") == cut


def test_every_trained_question_gets_its_exact_answer(cluster: Cluster, answers: dict[str, str]) -> None:
    assert len(answers) > 24
    with ThreadPoolExecutor(STREAMS) as pool:
        said = dict(zip(answers, pool.map(lambda question: ask(cluster, question), answers), strict=True))
    assert said == answers

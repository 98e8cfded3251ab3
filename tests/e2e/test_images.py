"""Images through a whole cluster: from an HTTP body to a model that sees."""

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.cluster import Cluster, start_cluster
from tests.integration.runner.pictures import image_file, picture
from tests.waiting import wait_until
from tools.model_zoo import build_pair

ONE, TWO = (base64.b64encode(image_file(picture(seed))).decode() for seed in (1, 2))
GREEDY = {"temperature": 0, "num_predict": 8}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a model that sees beside the demo model."""
    running = start_cluster(tmp_path_factory.mktemp("seeing") / "home")
    try:
        model, projector = build_pair("mrope", tmp_path_factory.mktemp("pair"))
        projector.rename(running.models / "eyes.mmproj.gguf")
        model.rename(running.models / "eyes.gguf")
        wait_until(lambda: "vision" in capabilities(running, "eyes"), deadline_s=30, what="the pair is found")
        yield running
    finally:
        running.stop()


def capabilities(cluster: Cluster, model: str) -> list[str]:
    answer = cluster.post("/api/show", {"model": model})
    return list(answer.json()["capabilities"]) if answer.status_code == 200 else []


def chat(cluster: Cluster, *images: str, model: str = "eyes") -> httpx.Response:
    message = {"role": "user", "content": "What do you see?", "images": list(images)}
    return cluster.post("/api/chat", {"model": model, "messages": [message], "options": GREEDY, "stream": False})


def test_a_pair_of_files_is_one_model_that_sees(cluster: Cluster) -> None:
    names = [model["name"] for model in httpx.get(cluster.url + "/api/tags", timeout=60).json()["models"]]
    assert "eyes:latest" in names
    assert not any("mmproj" in name for name in names)
    assert "vision" not in capabilities(cluster, "demo")


def test_chat_and_generate_see_the_image_before_the_text(cluster: Cluster) -> None:
    blind, one, two = chat(cluster), chat(cluster, ONE), chat(cluster, TWO)
    assert [answer.status_code for answer in (blind, one, two)] == [200, 200, 200]
    counts = [answer.json()["prompt_eval_count"] for answer in (blind, one, two)]
    assert counts[1] == counts[2] == counts[0] + 62  # 60 rows between two markers
    assert one.json()["message"]["content"] != two.json()["message"]["content"]
    assert chat(cluster, ONE).json()["message"]["content"] == one.json()["message"]["content"]
    body = {"model": "eyes", "prompt": "What do you see?", "images": [ONE], "options": GREEDY, "stream": False}
    assert cluster.post("/api/generate", body).json()["response"] == one.json()["message"]["content"]


def test_a_raw_prompt_has_its_images_where_the_markers_are(cluster: Cluster) -> None:
    def raw(prompt: str, *images: str) -> httpx.Response:
        body = {"model": "eyes", "prompt": prompt, "images": list(images), "raw": True, "stream": False}
        return cluster.post("/api/generate", body | {"options": GREEDY})

    placed, before = raw("See [img-0] this", ONE), raw("See  this", ONE)
    assert placed.status_code == before.status_code == 200
    assert placed.json()["response"] != before.json()["response"]
    missing = raw("See [img-3] this", ONE)
    assert (missing.status_code, missing.json()["error"]) == (400, "invalid image index: 3")
    assert raw("See [img-3] this").status_code == 200


def test_openai_parts_stand_where_they_are(cluster: Cluster) -> None:
    def ask(*parts: Mapping[str, object], model: str = "eyes") -> httpx.Response:
        messages = [{"role": "user", "content": list(parts)}]
        body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 8}
        return cluster.post("/v1/chat/completions", body)

    text = {"type": "text", "text": "What do you see?"}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ONE}"}}
    first, last = ask(image, text), ask(text, image)
    assert first.status_code == last.status_code == 200
    contents = [answer.json()["choices"][0]["message"]["content"] for answer in (first, last)]
    assert contents[0] == chat(cluster, ONE).json()["message"]["content"]
    assert contents[0] != contents[1]
    assert first.json()["usage"]["prompt_tokens"] == last.json()["usage"]["prompt_tokens"]
    remote = ask({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}, text)
    assert remote.status_code == 400
    assert "image URLs are not currently supported" in remote.json()["error"]["message"]


def test_what_is_no_image_or_for_a_blind_model_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    for bad, said in (("%%%", "base64"), (base64.b64encode(b"hi").decode(), "none of PNG"), (ONE[:2000], "image")):
        answer = chat(cluster, bad)
        assert answer.status_code == 400
        assert said in answer.json()["error"]
    blind = chat(cluster, ONE, model="demo")
    assert (blind.status_code, blind.json()["error"]) == (400, '"demo" does not support vision')
    many = chat(cluster, *[ONE] * 9)
    assert many.status_code == 400
    assert "8 images" in many.json()["error"]
    assert chat(cluster, ONE).status_code == 200


def test_a_model_that_is_loaded_sees_once_its_projector_lies_beside_it(cluster: Cluster, tmp_path: Path) -> None:
    model, projector = build_pair("vision", tmp_path)
    model.rename(cluster.models / "later.gguf")
    wait_until(lambda: capabilities(cluster, "later") != [], deadline_s=30, what="the model is found")
    assert chat(cluster, model="later").status_code == 200
    blind = chat(cluster, ONE, model="later")
    assert (blind.status_code, blind.json()["error"]) == (400, '"later" does not support vision')
    projector.rename(cluster.models / "later.mmproj.gguf")
    wait_until(lambda: "vision" in capabilities(cluster, "later"), deadline_s=30, what="the projector is found")
    shown = cluster.post("/api/show", {"model": "later"}).json()
    assert shown["projector_info"]["general.architecture"] == "clip"
    wait_until(lambda: chat(cluster, ONE, model="later").status_code == 200, deadline_s=60, what="it sees")
    assert chat(cluster, model="later").status_code == 200

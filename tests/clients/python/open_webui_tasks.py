"""Open WebUI before Puna, over its own API; models come from Puna's lists."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from task import DOUBLE, MODEL, STREAM, TOOL_QUESTION, URL, check_tool, double, run

START_DEADLINE_S = 300.0
SETTINGS = {
    "DATA_DIR": str(Path.cwd()),
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": secrets.token_hex(32),
    "OFFLINE_MODE": "True",
    "RAG_EMBEDDING_ENGINE": "ollama",  # else it loads a model of its own
    "OPENAI_API_BASE_URL": f"{URL}/v1",
    "OPENAI_API_KEY": "any",
    "OLLAMA_BASE_URL": URL,
}


def chat_completions_tool_call() -> None:
    _call_tool(MODEL, {"ENABLE_OLLAMA_API": "False"})


def ollama_tool_call() -> None:
    _call_tool(f"{MODEL}:latest", {"ENABLE_OPENAI_API": "False"})


def _call_tool(model: str, settings: dict[str, str]) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": TOOL_QUESTION}]
    pieces = 0
    with _serving(settings) as client:
        listed = [one["id"] for one in client.get("/api/models").raise_for_status().json()["data"]]
        assert model in listed, listed
        for _ in range(2):
            body = {"model": model, "messages": messages, "tools": [DOUBLE], "stream": STREAM}
            message, pieces = _ask(client, body)
            messages.append({"role": "assistant", **message})
            for call in message.get("tool_calls", ()):
                result = double(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(result)})
    check_tool(messages[-1]["content"], pieces=pieces)


def _ask(client: httpx.Client, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the message, and the number of pieces of its text."""
    if not body["stream"]:
        answer = client.post("/api/chat/completions", json=body).raise_for_status().json()
        return _without_nulls(answer["choices"][0]["message"]), 0
    message: dict[str, Any] = {"content": ""}
    pieces = 0
    with client.stream("POST", "/api/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if not data.startswith("{"):
                continue
            for choice in json.loads(data).get("choices", ()):
                delta = choice["delta"]
                if delta.get("content"):
                    message["content"] += delta["content"]
                    pieces += 1
                for call in delta.get("tool_calls") or ():
                    _add(message.setdefault("tool_calls", []), call)
    return message, pieces


def _add(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    if delta["index"] == len(calls):
        calls.append({"id": delta["id"], "type": "function", "function": {"name": "", "arguments": ""}})
    function = calls[delta["index"]]["function"]
    for name, text in delta["function"].items():
        function[name] += text or ""


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    return {"content": ""} | {name: value for name, value in message.items() if value is not None}


@contextmanager
def _serving(settings: dict[str, str]) -> Iterator[httpx.Client]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("open-webui")
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with Path("log.txt").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | SETTINGS | settings, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            deadline_s = time.monotonic() + START_DEADLINE_S
            while not _answers(client):
                assert process.poll() is None, Path("log.txt").read_text()[-500:]
                assert time.monotonic() < deadline_s, "Open WebUI does not answer"
                time.sleep(0.5)
            signed_in = client.post("/api/v1/auths/signin", json={"email": "", "password": ""}).raise_for_status()
            client.headers["Authorization"] = f"Bearer {signed_in.json()['token']}"
            yield client
    finally:
        process.terminate()
        process.wait()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


run(chat_completions_tool_call, ollama_tool_call)

"""LiteLLM's proxy before Puna, asked by OpenAI's SDK."""

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
from openai import OpenAI
from task import DOUBLE, MODEL, STREAM, TOOL_QUESTION, URL, check_tool, double, run

START_DEADLINE_S = 300.0
MASTER_KEY = f"sk-{secrets.token_hex(32)}"  # it does not start without one
SETTINGS = {
    "model_list": [
        {
            "model_name": "through-the-proxy",
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "any"},
        }
    ],
    "litellm_settings": {"telemetry": False},
}


def chat_completions_tool_call() -> None:
    messages: list[Any] = [{"role": "user", "content": TOOL_QUESTION}]
    pieces = 0
    with _proxy() as address, OpenAI(base_url=f"{address}/v1", api_key=MASTER_KEY, max_retries=0) as client:
        for _ in range(2):
            asked: dict[str, Any] = {"model": "through-the-proxy", "messages": messages, "tools": [DOUBLE]}
            if STREAM:
                with client.chat.completions.stream(**asked) as stream:
                    pieces = sum(event.type == "content.delta" for event in stream)
                    message = stream.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**asked).choices[0].message
            calls = [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls or []]
            messages.append(
                {"role": "assistant", "content": message.content} | ({"tool_calls": calls} if calls else {})
            )
            for call in message.tool_calls or []:
                result = double(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    check_tool(messages[-1]["content"], pieces=pieces)


@contextmanager
def _proxy() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    Path("config.yaml").write_text(json.dumps(SETTINGS))  # JSON is YAML
    program = Path(sys.executable).with_name("litellm")
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": MASTER_KEY}
    command = [str(program), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + START_DEADLINE_S
        while not _answers(address):
            assert process.poll() is None, "the proxy ended"
            assert time.monotonic() < deadline_s, "the proxy does not answer"
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health/liveliness", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


run(chat_completions_tool_call)

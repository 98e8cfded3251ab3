"""Code that the scripts share. They run with the packages of one client, and need nothing else.

The scripted model (tools/clients/chat_template.jinja) says the steps between the brackets, one on each turn.
"""

import json
import sys
from collections.abc import Callable

FACTS = json.loads(sys.argv[1])
URL: str = FACTS["url"]
MODEL: str = FACTS["model"]
EMBEDDING_MODEL: str = FACTS["embedding_model"]
WORD: str = FACTS["word"]
STREAM: bool = FACTS["stream"]

CALLS: list[int] = []
TOOL_QUESTION = f'Double 21 with the tool. ⟪call double {{"number": 21}}⟫ ⟪say The tool says {{result}}, {WORD}.⟫'
TOOL_ANSWER = f"The tool says 42, {WORD}."
PERSON = {"name": WORD, "age": 36}
PERSON_TEXT = json.dumps(PERSON)
DOUBLE = {
    "type": "function",
    "function": {
        "name": "double",
        "description": "Double a number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


def double(number: int) -> int:
    """Double a number.

    Args:
        number: the number to double.
    """
    CALLS.append(number)
    return 2 * number


def check_tool(answer: str | None, *, pieces: int = 0) -> None:
    """Check that the tool was called once and that its result is in the answer, of a stream in pieces."""
    assert CALLS == [21], CALLS
    assert TOOL_ANSWER in (answer or ""), answer
    assert not STREAM or pieces > 0  # a busy machine sends a short answer in one


def check_person(name: str, age: int) -> None:
    """Check what was parsed."""
    assert {"name": name, "age": age} == PERSON, (name, age)


def check_vectors(vectors: list[list[float]]) -> None:
    """Check that the first two texts, which are equal, have one vector and the third another one."""
    first, second, third = ([float(value) for value in vector] for vector in vectors)
    assert len(first) > 1
    assert first == second != third


TEXTS = ["A text.", "A text.", f"Quite another one: {WORD}"]


def run(*tasks: Callable[[], None]) -> None:
    """Do the task that was asked for: "Chat completions: tool call" is `chat_completions_tool_call`."""
    name = FACTS["task"].lower().replace(":", "").replace(",", "").replace(" ", "_")
    {task.__name__: task for task in tasks}[name]()

"""instructor: a type of pydantic as the answer."""

import instructor
from openai import OpenAI
from pydantic import BaseModel
from task import MODEL, PERSON_TEXT, STREAM, URL, check_person, run


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def chat_completions_structured_output() -> None:
    _ask(instructor.Mode.JSON_SCHEMA, f"⟪say {PERSON_TEXT}⟫")


def chat_completions_structured_output_by_a_tool() -> None:
    name = "PartialPerson" if STREAM else "Person"  # the tool that it offers
    _ask(instructor.Mode.TOOLS, f"⟪call {name} {PERSON_TEXT}⟫")


def _ask(mode: instructor.Mode, script: str) -> None:
    client = instructor.from_openai(OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0), mode=mode)
    messages = [{"role": "user", "content": f"Describe the person. {script}"}]
    if STREAM:
        *_, person = client.chat.completions.create_partial(
            model=MODEL, messages=messages, response_model=Person, max_retries=0
        )
    else:
        person = client.chat.completions.create(model=MODEL, messages=messages, response_model=Person, max_retries=0)
    check_person(person.name, person.age)


run(chat_completions_structured_output, chat_completions_structured_output_by_a_tool)

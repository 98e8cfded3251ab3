"""Render chat templates in a process of its own, a worker of `common.sandbox`.

A sandboxed environment stops a template from reaching code, but not from burning CPU or memory: two nested ranges run
for minutes. So the kernel ends this process when a rendering exceeds its CPU time, and its address space is limited.

In: {"template", "variables"} as JSON. Out: {"text"}, or {"error"} and "flaw" where that is the template's own, whatever
the conversation.
"""

import functools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from common.sandbox.worker_process import serve_frames

CPU_S_MAX = 1.0
MEMORY_BYTES_MAX = 256 * 1024 * 1024
RENDERED_BYTES_MAX = 8 * 1024 * 1024
TEMPLATES_CACHED_MAX = 16
ERROR_LENGTH_MAX = 500
# It reaches for code or files, or cannot be read; what else goes wrong may be the conversation's fault.
FLAWS = (SecurityError, jinja2.TemplateSyntaxError, jinja2.TemplateNotFound)


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks training targets in some templates; here its body is rendered."""

    tags = {"generation"}  # noqa: RUF012  # the base class's shape

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Replace the block by a scope with its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def to_json(  # the signature of Hugging Face's filter
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the HTML escapes of jinja's own filter; models were trained on this form."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> NoReturn:
    """Refuse a conversation, as a function that templates call."""
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    """Format the date, as some templates put it into the system message."""
    return datetime.now().astimezone().strftime(form)


def make_environment() -> ImmutableSandboxedEnvironment:
    """Make the environment that templates of GGUF files expect."""
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.DictLoader({}), trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def make_renderer() -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Make a function from template and variables to {"text"} or {"error", "flaw"}."""
    environment = make_environment()
    compile_template = functools.lru_cache(maxsize=TEMPLATES_CACHED_MAX)(environment.from_string)

    def render(template: str, variables: dict[str, Any]) -> dict[str, Any]:
        try:
            text = compile_template(template).render(**variables)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a template does is the template's fault
            return {"error": f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX], "flaw": isinstance(error, FLAWS)}
        if len(text.encode("utf-8", "surrogatepass")) > RENDERED_BYTES_MAX:
            return {"error": f"the rendered prompt is larger than {RENDERED_BYTES_MAX} bytes"}
        return {"text": text}

    return render


def main() -> None:
    """Answer frames until the input ends."""
    render = make_renderer()

    def answer(content: bytes) -> bytes:
        request = json.loads(content)
        rendered = render(request["template"], request["variables"])
        return json.dumps(rendered, ensure_ascii=False).encode(errors="replace")

    serve_frames(answer, cpu_s_max=CPU_S_MAX, memory_bytes_max=MEMORY_BYTES_MAX)


if __name__ == "__main__":
    main()

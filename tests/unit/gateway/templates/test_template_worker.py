"""Chat templates in their own processes: what they may do, and what kills them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import TemplateFailed
from gateway.templates.pool import TEMPLATE_BYTES_MAX, WALL_S_MAX, WORKERS, TemplatePool
from gateway.templates.worker import make_renderer
from tests.waiting import Stopwatch

VARIABLES: dict[str, Any] = {"messages": [{"role": "user", "content": "<b>hi</b> ä"}], "tools": [{"name": "é"}]}


@pytest.fixture
async def pool() -> AsyncIterator[TemplatePool]:
    one = TemplatePool()
    await one.start()
    yield one
    await one.stop()


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ messages[0].content }}", "<b>hi</b> ä"),
        ("{{ tools | tojson }}", '[{"name": "é"}]'),
        ("{{ tools | tojson(indent=1) }}", '[\n {\n  "name": "é"\n }\n]'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("  {% if true %}\nx{% endif %}", "x"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ missing is defined }}", "False"),
    ],
)
def test_templates_find_what_hugging_face_gives_them(template: str, text: str) -> None:
    assert make_renderer()(template, VARIABLES) == {"text": text}


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only user and assistant') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ ('a'|attr('__class__')).__base__ }}",
        "{% include 'x' %}",
        "{% if %}",
        "{{ undefined_name.attribute }}",
        "{{ 1 / 0 }}",
    ],
)
def test_what_a_template_may_not_do_is_an_error_of_the_template(template: str) -> None:
    assert "error" in make_renderer()(template, VARIABLES)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 5000000000 }}",
        "{% set ns = namespace(s='x' * 1000) %}{% for i in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'x' * 20000000 }}",
    ],
    ids=["loops", "allocation", "doubling", "power", "large"],
)
async def test_a_hostile_template_is_stopped_and_the_next_one_renders(pool: TemplatePool, template: str) -> None:
    watch = Stopwatch()
    with pytest.raises(TemplateFailed):
        await pool.render(template, VARIABLES)
    # One second of CPU; how long that takes is the machine's business, up to the limit on wall time.
    assert watch.elapsed_s < WALL_S_MAX + 1.0
    for _ in range(WORKERS + 1):
        assert await pool.render("{{ messages[0].role }}", VARIABLES) == "user"


@pytest.mark.parametrize(
    ("template", "is_flaw"),
    [
        ("{{ ''.__class__.__mro__ }}", True),
        ("{% include '/etc/passwd' %}", True),
        ("{% if %}", True),
        ("{{ 'a' * 5000000000 }}", True),
        ("x" * (TEMPLATE_BYTES_MAX + 1), True),
        ("{{ raise_exception('system messages are not for me') }}", False),
        ("{{ messages[7].content.strip() }}", False),
    ],
)
async def test_what_is_the_templates_own_is_told_from_what_a_conversation_did(
    pool: TemplatePool, template: str, is_flaw: bool
) -> None:
    with pytest.raises(TemplateFailed) as caught:
        await pool.render(template, VARIABLES)
    assert caught.value.is_flaw is is_flaw


async def test_a_template_that_refuses_says_why(pool: TemplatePool) -> None:
    with pytest.raises(TemplateFailed, match="roles must alternate"):
        await pool.render("{{ raise_exception('roles must alternate') }}", VARIABLES)


async def test_a_template_beyond_its_size_is_not_even_compiled(pool: TemplatePool) -> None:
    with pytest.raises(TemplateFailed, match="larger than"):
        await pool.render("x" * (TEMPLATE_BYTES_MAX + 1), {})


async def test_a_hostile_template_does_not_hold_up_others(pool: TemplatePool) -> None:
    await asyncio.gather(*(pool.render("warm", {}) for _ in range(WORKERS)))
    hostile = asyncio.create_task(
        pool.render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", {})
    )
    assert await pool.render("ok", {}) == "ok"
    assert not hostile.done()
    with pytest.raises(TemplateFailed):
        await hostile


async def test_a_worker_that_stands_still_is_replaced(pool: TemplatePool, monkeypatch: pytest.MonkeyPatch) -> None:
    await pool.render("warm", {})
    for pid in _workers():
        os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr("gateway.templates.pool.WALL_S_MAX", 0.2)
        for _ in range(WORKERS):
            with pytest.raises(TemplateFailed, match="over its time"):
                await pool.render("a", {})
    assert await pool.render("b", {}) == "b"


def _workers() -> list[int]:
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()
    return [int(pid) for pid in children if b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_a_cancelled_rendering_leaves_no_answer_for_the_next_request(pool: TemplatePool) -> None:
    slow = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}slow"
    for _ in range(WORKERS):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.render(slow, {})
    assert await pool.render("next", {}) == "next"


async def test_the_limit_counts_cpu_time_of_one_rendering_and_not_of_the_process(
    pool: TemplatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.templates.pool.WALL_S_MAX", 100.0)
    third_of_a_second = "{% for i in range(1000) %}{% for j in range(1500) %}{% endfor %}{% endfor %}ok"
    for _ in range(WORKERS * 6):
        assert await pool.render(third_of_a_second, {}) == "ok"

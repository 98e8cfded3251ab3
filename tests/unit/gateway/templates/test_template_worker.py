"""Chat templates in their own processes: what they may do, and what kills them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from common.errors import TemplateFailed
from common.sandbox.worker_pool import WALL_S_MAX, WORKERS
from gateway.templates.kills import KILL_REMEMBERED_S
from gateway.templates.pool import TEMPLATE_BYTES_MAX, TemplatePool
from gateway.templates.worker import make_renderer
from tests.set_clock import SetClock
from tests.waiting import Stopwatch

VARIABLES: dict[str, Any] = {"messages": [{"role": "user", "content": "<b>hi</b> ä"}], "tools": [{"name": "é"}]}


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
_sender = ContextVar("sender", default="192.0.2.1")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def pool(clock: SetClock) -> AsyncIterator[TemplatePool]:
    one = TemplatePool(clock, sender=_sender.get)
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
        "{% import 'x' as x %}",
        "{% extends '/etc/passwd' %}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ [].__class__.__base__.__subclasses__() }}",
        "{{ (messages | map(attribute='__class__') | list)[0].mro() }}",
        "{{ '{0.__class__.__mro__}'.format('').nothing }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
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
    took_s = watch.wall_s
    for _ in range(WORKERS + 1):
        assert await pool.render("{{ messages[0].role }}", VARIABLES) == "user"
    watch.assert_within(WALL_S_MAX + 1.0, "the template is stopped", took_s=took_s)


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


async def test_a_worker_that_stands_still_is_replaced(pool: TemplatePool, monkeypatch: pytest.MonkeyPatch) -> None:
    await pool.render("warm", {})
    for pid in _workers():
        os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr("common.sandbox.worker_pool.WALL_S_MAX", 0.2)
        for _ in range(WORKERS):
            with pytest.raises(TemplateFailed, match="over its time"):
                await pool.render("a", {})
    assert await pool.render("b", {}) == "b"


def _workers() -> list[int]:
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()
    return [int(pid) for pid in children if b"templates.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_a_cancelled_rendering_leaves_no_answer_for_the_next_request(pool: TemplatePool) -> None:
    slow = f"{LOOP}slow"
    for _ in range(WORKERS):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.render(slow, {})
    assert await pool.render("next", {}) == "next"


async def test_the_limit_counts_cpu_time_of_one_rendering_and_not_of_the_process(
    pool: TemplatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.sandbox.worker_pool.WALL_S_MAX", 100.0)
    third_of_a_second = "{% for i in range(1000) %}{% for j in range(1500) %}{% endfor %}{% endfor %}ok"
    for _ in range(WORKERS * 6):
        assert await pool.render(third_of_a_second, {}) == "ok"


async def render_for(
    sender: str, pool: TemplatePool, template: str, variables: Mapping[str, Any], *, is_small: bool
) -> str:
    """Render in a task of this sender."""
    _sender.set(sender)
    return await pool.render(template, variables, is_small=is_small)


def stopped(how: str) -> float:
    return REGISTRY.get_sample_value("puna_gateway_stopped_templates_total", {"how": how}) or 0.0


@pytest.mark.parametrize("other", ["quiet", "loud"])
async def test_a_template_that_loops_costs_one_worker_once_and_other_renderings_nothing(
    other: str, pool: TemplatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients without keys may share an address, so the other one may be the same sender."""
    monkeypatch.setattr("common.sandbox.worker_pool.WALL_S_MAX", 100.0)  # the kernel's limit on CPU time alone
    monkeypatch.setattr("common.sandbox.worker_pool.WAIT_S_MAX", 100.0)
    killed, refused = stopped("killed"), stopped("refused")
    await asyncio.create_task(render_for(other, pool, "{{ n }}", {"n": 0}, is_small=True))
    loops = [asyncio.create_task(render_for("loud", pool, LOOP, {}, is_small=True)) for _ in range(20)]
    for number in range(20):
        text = await asyncio.create_task(render_for(other, pool, "{{ n }}", {"n": number}, is_small=True))
        assert text == str(number)
    assert not any(loop.done() for loop in loops), "the other rendering waited for a loop"
    outcomes = await asyncio.gather(*loops, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {TemplateFailed}
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert (stopped("killed"), stopped("refused")) == (killed + 1, refused + 19)


async def test_a_killed_template_is_refused_to_all_for_a_minute_and_tried_again_then(
    pool: TemplatePool, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.sandbox.worker_pool.WALL_S_MAX", 100.0)
    killed = stopped("killed")
    for sender, moved_s in (("a", 0.0), ("b", 0.0), ("192.0.2.2", 1.0), ("a", KILL_REMEMBERED_S - 0.01)):
        clock.moved_s = moved_s
        with pytest.raises(TemplateFailed, match="over its time or memory") as caught:
            await asyncio.create_task(render_for(sender, pool, LOOP, {}, is_small=True))
        assert caught.value.is_flaw
        assert stopped("killed") == killed + 1
    assert await pool.render("ok", {}) == "ok"
    clock.moved_s = KILL_REMEMBERED_S
    with pytest.raises(TemplateFailed, match="over its time or memory"):
        await pool.render(LOOP, {}, is_small=True)
    assert stopped("killed") == killed + 2


async def test_a_long_conversation_closes_a_template_to_its_own_sender_and_length_only(
    pool: TemplatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.sandbox.worker_pool.WALL_S_MAX", 100.0)
    killed = stopped("killed")
    quadratic = "{% for a in text %}{% for b in text %}{% endfor %}{% endfor %}ok"
    long, short = {"text": "x" * 100_000}, {"text": "x" * 10}
    for _ in range(2):
        with pytest.raises(TemplateFailed, match="over its time or memory"):
            await asyncio.create_task(render_for("a", pool, quadratic, long, is_small=False))
    assert stopped("killed") == killed + 1
    for sender in ("a", "b"):
        assert await asyncio.create_task(render_for(sender, pool, quadratic, short, is_small=True)) == "ok"
    with pytest.raises(TemplateFailed):
        await asyncio.create_task(render_for("b", pool, quadratic, long, is_small=False))
    assert stopped("killed") == killed + 2

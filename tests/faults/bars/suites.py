"""Bars that existing tests show: each suite is run, and its outcome read. No load of this package runs beside them."""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.e2e.namespaces import missing
from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most
from tests.faults.bars.rig import ROOT, python
from tests.fuzz.answers import REFUSED_S_MAX

NOT_MEASURABLE = "not measurable here"
FUZZ = {"FUZZ_CASES": "10000", "FUZZ_RAW": "40000", "FUZZ_GRPC": "1700"}  # as `make fuzz`
FUZZED_HTTP_MIN, FUZZED_GRPC_MIN = 50_000, 20_000
# Least numbers of different items, and the tests that have one a case.
HOSTILE_MIN = {
    "model files": (
        40,
        (
            "test_hostile_headers_are_refused",
            "test_a_hostile_header_is_refused_at_create_and_at_a_load_of_a_plain_file",
            "test_a_hostile_header_is_described_or_refused_in_two_seconds",
        ),
    ),
    "templates": (
        20,
        (
            "test_what_a_template_may_not_do_is_an_error_of_the_template",
            "test_a_hostile_template_is_stopped_and_the_next_one_renders",
        ),
    ),
    "grammars": (
        20,
        (
            "test_what_cannot_be_read_is_refused_with_a_reason",
            "test_an_ambiguous_grammar_is_followed_or_given_up_within_its_budget",
        ),
    ),
}
REDIRECTS = "redirects into the node"


async def run_tests(paths: Sequence[str], environment: Mapping[str, str] | None = None) -> Round:
    """Run tests in a process of their own; counts, and the reasons of what was not passed."""
    with tempfile.TemporaryDirectory(prefix="puna-suite-") as directory:
        report = Path(directory) / "report.xml"
        command = python("pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *paths)
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=sys.stderr
        )
        status = await process.wait()
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []  # our own
    found: Round = {"suite": " ".join(paths), "status": status, "passed": 0, "failed": [], "late": [], "skipped": []}
    found["recorded"] = _recorded(cases)
    passed: Counter[str] = Counter()
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            found["failed"].append(case.get("name"))
        elif (skipped := case.find("skipped")) is not None:
            why = skipped.get("message", "")
            found["late" if NOT_MEASURABLE in why else "skipped"].append(f"{case.get('name')}: {why}")
        else:
            found["passed"] += 1
            passed[case.get("name", "").partition("[")[0]] += 1
    return found | {"passed_by_test": dict(passed)}


def _recorded(cases: Sequence[ElementTree.Element]) -> dict[str, list[float]]:
    """Return the figures that tests recorded as properties."""
    recorded: dict[str, list[float]] = {}
    for one in (found for case in cases for found in case.iter("property")):
        recorded.setdefault(one.get("name", ""), []).append(float(one.get("value", "nan")))
    return recorded


def judge_tests(rounds: Sequence[Round]) -> list[Figure]:
    """Figures of the suites among some rounds."""
    suites = [one for one in rounds if "suite" in one]
    late = [len(one["late"]) for one in suites]
    return [
        at_least("tests passed", sum(one["passed"] for one in suites), 1),
        at_most("tests failed", [len(one["failed"]) + (one["status"] != 0) for one in suites], 0),
        at_most("tests skipped for what the machine lacks", [len(one["skipped"]) for one in suites], 0),
        at_most("tests not measurable", late, 0, is_timed=True),
    ]


def _judge_fuzz(rounds: list[Round]) -> list[Figure]:
    recorded = [one["recorded"] for one in rounds]

    def values(name: str) -> list[float]:
        return [value for one in recorded for value in one.get(name, ())]

    return [
        *judge_tests(rounds),
        at_least("HTTP cases", sum(values("http_cases")), FUZZED_HTTP_MIN),
        at_least("gRPC cases", sum(values("grpc_cases")), FUZZED_GRPC_MIN),
        at_most("slowest refusal", values("slowest_refusal_s"), REFUSED_S_MAX, "s"),
    ]


def _judge_hostile(rounds: list[Round]) -> list[Figure]:
    passed = _passed(rounds)
    return [
        *judge_tests(rounds),
        *(
            at_least(f"hostile {what} refused or harmless", sum(passed[test] for test in tests), least)
            for what, (least, tests) in HOSTILE_MIN.items()
        ),
    ]


def _passed(rounds: Sequence[Round]) -> Counter[str]:
    """Count the cases that passed, by the name of their test."""
    return sum((Counter(one["passed_by_test"]) for one in rounds), Counter())


def _suite(
    number: int,
    key: str,
    title: str,
    minutes: int,
    *paths: str,
    judge: Callable[[list[Round]], list[Figure]] = judge_tests,
    **environment: str,
) -> Bar:
    async def run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
        del directory, numbers, size  # a suite is run as a whole
        yield await run_tests(paths, environment)

    return Bar(
        number=number,
        key=key,
        title=title,
        full=1,
        sample=0,
        unit="run of the suite",
        minutes=minutes,
        per_round=0,
        run=run,
        judge=judge,
        has_load=False,
    )


async def _attack(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    del numbers, size
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    report = directory / "attack.json"
    process = await asyncio.create_subprocess_exec(
        *python("tests.attack", "--out", str(report)), cwd=ROOT, stdout=sys.stderr
    )
    await process.wait()
    found = json.loads(report.read_text()) if report.exists() else {}
    seen = {one["attack"]: str((one["after"] or {}).get("seen", "")) for one in found.get("attacks", ())}
    spelt = re.match(r"(\d+) spellings", seen.get(REDIRECTS, ""))
    yield {
        "suite": "python -m tests.attack",
        "spellings": int(spelt[1]) if spelt else 0,
        "attacks": len(found.get("attacks", ())),
        "damage": found.get("damage", 0),
        "not_runnable": found.get("not_runnable", 0),
    }


def _judge_attack(rounds: list[Round]) -> list[Figure]:
    return [
        at_least("attacks", sum(one["attacks"] for one in rounds), 1),
        at_most("attacks that did damage", [one["damage"] for one in rounds], 0),
        at_most("attacks that could not be run", [one["not_runnable"] for one in rounds], 0),
        at_least("spellings of addresses to which a pull is redirected", sum(one["spellings"] for one in rounds), 60),
    ]


EGRESS = Bar(
    number=18,
    key="egress",
    title="attacks from the network, of children, by input and by supply; addresses that are fetched",
    full=1,
    sample=0,
    unit="run of the suite",
    minutes=10,
    per_round=0,
    run=_attack,
    judge=_judge_attack,
    needs=missing,
    has_load=False,
)
FUZZED = _suite(
    15,
    "fuzz",
    "random input for every route, HTTP and gRPC",
    20,
    "tests/fuzz",
    "--timeout=0",
    judge=_judge_fuzz,
    **FUZZ,
)
BAD_INPUT = _suite(16, "bad_input", "the catalogue of bad input in every dialect", 10, "tests/badinput")
HOSTILE_MODELS = _suite(
    17,
    "hostile_model",
    "hostile model files, templates and grammars",
    10,
    "tests/integration/host/test_hostile_headers.py",
    "tests/integration/host/test_inspection_time.py",
    "tests/integration/host/test_pull_hostile.py",
    "tests/unit/runner/core/model/test_gguf_check.py",
    "tests/unit/runner/core/grammar/test_gbnf.py",
    "tests/unit/gateway/templates/test_template_worker.py",
    "tests/integration/gateway/test_probation.py",
    "tests/faults/test_runner_kill.py::test_runner_kill_by_the_request_itself_ends_it_after_two",
    "tests/e2e/test_bad_input.py",
    judge=_judge_hostile,
)
AUTHORITY = _suite(19, "authz", "every route with every kind of caller", 10, "tests/authz")

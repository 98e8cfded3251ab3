"""The state machines as tables: from the enumerations, their comments, and what the functions of the code do with them.

Where a transition is a pure function (devices, nodes), it is called for every state, and the table shows the result.
Where a table of transitions exists (loads), it is shown. Elsewhere the table names the functions that enter a state.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from discovery.core import membership
from runner.core.devices import device_health
from runner.core.devices.device_health import CheckFailure, Condition, DeviceHealth, RunnerError
from scheduler.core.state.cluster_state import StopState
from scheduler.core.state.load_jobs import TRANSITIONS, LoadState
from scheduler.core.values.desired import Phase
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, RunnerState
from tools.proto_tables import files

ROOT = Path(__file__).resolve().parents[1]
# Long after every retry of a check, so that "time passes" shows what time alone changes.
_LATE_S = 2 * device_health.RETRY_S_MAX
_SILENCE_S_MAX = 10.0
Functions = dict[str, str]  # "module.function" to the first line of its docstring


def state_tables() -> str:
    """Return all tables, one below the other."""
    return "\n\n".join((_runners(), _placements(), _endings(), _loads(), _devices(), _nodes()))


def _runners() -> str:
    kinds = {**dict.fromkeys(STARTING_STATES, "starting"), **dict.fromkeys(SERVING_STATES, "serving")}
    rows = [
        f"| `{name}` | {text} | {kinds.get(RunnerState(name), 'neither')} |"
        for name, text in _proto_values("RunnerState").items()
    ]
    about = "State of a runner in its host's reports, and for the scheduler (`scheduler/core/values/view.py`)."
    return _table("Runner", about, ("state", "meaning", "counts as"), rows)


def _placements() -> str:
    rows = [
        f"| `{phase.value}` | {text} | {_sentences(_entered_by(f'Phase.{phase.name}', ('scheduler/core',)))} |"
        for phase, text in _members(Phase).items()
    ]
    about = "Stored state of a placement (`scheduler/core/values/desired.py`)."
    return _table("Placement", about, ("state", "meaning", "entered by"), rows)


def _endings() -> str:
    rows = [
        f"| `{state.value}` | {text} | {_sentences(_entered_by(f'StopState.{state.name}', ('scheduler/core',)))} |"
        for state, text in _members(StopState).items()
    ]
    about = "Progress of a replica's end (`scheduler/core/stopping/stopping.py`)."
    return _table("End of a replica", about, ("state", "meaning", "entered by"), rows)


def _loads() -> str:
    rows = []
    for state, text in _members(LoadState).items():
        following = [f"`{to}`" for to in LoadState if to in TRANSITIONS[LoadState(state.value)]]
        rows.append(f"| `{state.value}` | {text} | {', '.join(following) or 'the end'} |")
    about = "Progress of one load of one model (`scheduler/core/state/load_jobs.py`)."
    return _table("Load", about, ("state", "meaning", "next"), rows)


_ERRORS = tuple(RunnerError(at_unix_s=0.0, model_digest=name) for name in ("a", "b", "c"))
_DEVICE_EVENTS: Mapping[str, Callable[[DeviceHealth], DeviceHealth]] = MappingProxyType(
    {
        "its check passes": device_health.pass_check,
        "its check fails": lambda health: device_health.fail_check(
            health, CheckFailure(reason="why"), now_unix_s=0.0, driver="1"
        ),
        "no longer listed": lambda health: device_health.lose(health, "why"),
        "listed again": device_health.find_again,
        "something is odd": lambda health: device_health.doubt(health, "why"),
        "a runner's error": lambda health: device_health.see_error(health, _ERRORS[0], driver="1", text="why"),
        "errors of three models within ten minutes": lambda health: device_health.see_error(
            replace(health, errors=_ERRORS[1:]), _ERRORS[0], driver="1", text="why"
        ),
        "a request is to blame": lambda health: device_health.excuse(replace(health, errors=_ERRORS), ""),
        "another driver": lambda health: device_health.see_driver(health, "2"),
        "time passes": lambda health: device_health.see_time(health, now_unix_s=_LATE_S),
        "an operator clears it": device_health.reset,
    }
)


def _devices() -> str:
    rows = []
    for event, apply in _DEVICE_EVENTS.items():
        cells = []
        for condition in Condition:
            after = apply(DeviceHealth(condition=condition, driver="1", retry_at_unix_s=1.0)).condition
            cells.append("·" if after is condition else after.value)
        rows.append(f"| {event} | {' | '.join(cells)} |")
    about = (
        "Health of a device at its host (`runner/core/devices/device_health.py`); · is no change. Reports say `ok`, "
        "`lost`, `suspect` (unchecked) and `excluded` (failed, worn, barred)."
    )
    return _table("Device", about, ("event", *(f"`{condition.value}`" for condition in Condition)), rows)


def _nodes() -> str:
    sections = dict.fromkeys(membership.NodeSection, object())
    report = membership.Report(node_id="a", incarnation="1", started_at_unix_ms=1, stream=1, sections=sections)
    empty = membership.Membership()
    there = membership.apply_report(empty, report, now_s=0.0)
    silent = membership.apply_time(there, now_s=_SILENCE_S_MAX + 1, silence_s_max=_SILENCE_S_MAX)
    events: dict[str, Callable[[membership.Membership], membership.Membership]] = {
        "it reports": lambda known: membership.apply_report(known, report, now_s=0.0),
        "it is silent for too long": lambda known: membership.apply_time(
            known, now_s=_SILENCE_S_MAX + 1, silence_s_max=_SILENCE_S_MAX
        ),
        "its stream breaks": lambda known: membership.apply_disconnect(known, node_id="a", stream=1),
    }
    states = {"absent": empty, "ready": there, "suspect": silent}
    rows = []
    for event, apply in events.items():
        before_after = [(name, _node_state(apply(known))) for name, known in states.items()]
        rows.append(f"| {event} | {' | '.join('·' if a == b else b for a, b in before_after)} |")
    about = (
        "State of a node at discovery (`discovery/core/membership.py`). Draining is separate: an operator's wish that "
        "the scheduler stores (`scheduler/core/draining.py`)."
    )
    return _table("Node", about, ("event", *(f"`{name}`" for name in states)), rows)


def _node_state(known: membership.Membership) -> str:
    node = known.nodes.get("a")
    if node is None:
        return "absent"
    return "suspect" if node.suspect else "ready"


def _table(title: str, about: str, heads: tuple[str, ...], rows: list[str]) -> str:
    lines = [
        f"### {title}",
        "",
        *textwrap.wrap(about, 119, break_on_hyphens=False),
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *rows,
    ]
    return "\n".join(lines)


def _members(kind: type[Enum]) -> dict[Enum, str]:
    """Each member with the comment behind it."""
    comments = dict(re.findall(r"^\s+([A-Z_]+) = [^#\n]*#\s*(.*)$", inspect.getsource(kind), re.MULTILINE))
    return {member: comments.get(member.name, "") for member in kind}


def _proto_values(name: str) -> dict[str, str]:
    """Values of an enumeration of the protos, as its rows in the reference, without the unspecified one."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() + "_"
    found = {}
    for file in files():
        for at, enum in enumerate(file.proto.enum_type):
            if enum.name == name:
                for place, value in enumerate(enum.value):
                    found[value.name.removeprefix(prefix).lower()] = file.comment(5, at, 2, place)
    found.pop("unspecified")
    return found


def _entered_by(member: str, folders: tuple[str, ...]) -> Functions:
    """Return the functions that assign the member or pass it on."""
    found: Functions = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if member not in text:
                continue
            for function in ast.walk(ast.parse(text)):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _makes(function, member):
                    about = (ast.get_docstring(function) or "").split("\n\n")[0]
                    found[f"{path.stem}.{function.name}"] = " ".join(about.split())
    return found


def _makes(function: ast.AST, member: str) -> bool:
    for node in ast.walk(function):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Assign | ast.keyword | ast.Return):
            values = [node.value]
        elif isinstance(node, ast.Call):
            values = list(node.args)
        if any(value is not None and _spelt(value).endswith(member) for value in values):
            return True
    return False


def _spelt(value: ast.expr) -> str:
    return ast.unparse(value) if isinstance(value, ast.Attribute | ast.Name) else ""


def _sentences(functions: Functions) -> str:
    return "; ".join(f"`{name}`" + (f" ({text.rstrip('.')})" if text else "") for name, text in functions.items())

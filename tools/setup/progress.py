"""Progress of a stage from the output of pip, CMake and Ninja. Pure: lines and times in, text out."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

BAR_CELLS = 16
_TITLE_CELLS = 17
# The first steps are too few to tell the rate.
_MEASURED_S_MIN = 8.0
_MEASURED_SHARE_MIN = 0.03
_PLAIN_LINES = 10  # of a stage, without a terminal
_NINJA_STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] ")
_MAKE_STEP = re.compile(r"^\s*\[ *(\d+)%\] ")
_PACKAGE = re.compile(r"^\s*(?:Collecting|Requirement already satisfied:) ")
# How the first line of a phase begins, without its indent: pip installs the build tools in a pip of its own.
_BUILD_PHASES = (
    ("Collecting llama-cpp-python", "downloading"),
    ("Installing build dependencies", "installing build tools"),
    ("*** Configuring CMake", "configuring"),
    ("*** Building project", "compiling"),
    ("*** Installing project", "packing"),
    ("*** Making wheel", "packing"),
    ("Installing collected packages", "installing"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Position in one stage."""

    phase: str = ""  # what runs now
    done: int = 0
    total: int = 0  # 0: unknown
    unit: str = "steps"
    began_s: float | None = None  # the first step


Reader = Callable[[Progress, str, float], Progress]


def read_packages(progress: Progress, line: str, now_s: float) -> Progress:
    """Count the packages that pip has looked at; `total` is the number in the lock."""
    if line.lstrip().startswith("Installing collected packages"):
        return replace(progress, phase="installing", done=progress.total)
    if not _PACKAGE.match(line):
        return progress
    began_s = now_s if progress.began_s is None else progress.began_s
    done = min(progress.done + 1, progress.total)
    return replace(progress, phase="collecting", done=done, unit="packages", began_s=began_s)


def read_build(progress: Progress, line: str, now_s: float) -> Progress:
    """Follow pip through the build of the engine: phases, and the steps of Ninja or the percentages of make."""
    if found := _NINJA_STEP.match(line):
        done, total = int(found[1]), int(found[2])
    elif found := _MAKE_STEP.match(line):
        done, total = int(found[1]), 100
    else:
        phase = next((phase for start, phase in _BUILD_PHASES if line.strip().startswith(start)), progress.phase)
        return replace(progress, phase=phase)
    if (
        total < progress.total or done < progress.done
    ):  # a build inside the build, or Ninja that looks at its files again
        return progress
    began_s = now_s if progress.began_s is None else progress.began_s
    return replace(progress, phase="compiling", done=done, total=total, began_s=began_s)


def left_s(progress: Progress, now_s: float) -> float | None:
    """Return the time that the remaining steps take at the rate so far, or None while too few are done."""
    if progress.began_s is None or not progress.total or progress.done >= progress.total:
        return None
    passed_s = now_s - progress.began_s
    if passed_s < _MEASURED_S_MIN or progress.done < _MEASURED_SHARE_MIN * progress.total:
        return None
    return passed_s * (progress.total - progress.done) / progress.done


def duration(seconds: float) -> str:
    """Return a time that has passed: 41 s, 2 min 05 s."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


def rough(seconds: float) -> str:
    """Return a time that is only estimated: by ten seconds, from two minutes on by minutes."""
    if seconds >= 120:
        return f"{round(seconds / 60)} min"
    return f"{max(10, round(seconds / 10) * 10)} s"


def clock(seconds: float) -> str:
    """Return a time that runs on, in a width that hardly changes: 0:41, 2:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def words(progress: Progress, now_s: float) -> str:
    """Return the position as text: the phase, steps of all, time left."""
    text = progress.phase
    if progress.done:
        text += f" {progress.done}/{progress.total}"
    if progress.unit == "steps" and (left := left_s(progress, now_s)) is not None:
        text += f", about {rough(left)} left"
    return text


def bar(progress: Progress) -> str:
    """Return the bar, or nothing while the number of steps is unknown."""
    if not progress.total or not progress.done:
        return ""
    cells = BAR_CELLS * progress.done // progress.total
    return "━" * cells + "╌" * (BAR_CELLS - cells)


class TerminalView:
    """One line that is written over until its stage ends."""

    def __init__(self, width: int) -> None:
        self._width = width

    def update(self, title: str, progress: Progress, *, passed_s: float, now_s: float) -> str:
        """Return what to write now; never longer than the terminal is wide, else it could not be written over."""
        parts = [title.ljust(_TITLE_CELLS), bar(progress), clock(passed_s), words(progress, now_s)]
        line = " ".join(part for part in parts if part)
        return f"\r\x1b[K{line[: self._width - 1]}"

    def end(self, title: str, outcome: str) -> str:
        """Return the line that stays."""
        return f"\r\x1b[K{title.ljust(_TITLE_CELLS)} {outcome}\n"


class PlainView:
    """Lines for a log: when a phase begins, and at each tenth of its steps."""

    def __init__(self) -> None:
        self._last: tuple[str, str, int] | None = None

    def update(self, title: str, progress: Progress, *, passed_s: float, now_s: float) -> str:
        """Return a line, or nothing if too little has happened since the last one."""
        tenth = _PLAIN_LINES * progress.done // progress.total if progress.total else 0
        now = (title, progress.phase, tenth)
        if now == self._last or not progress.phase:
            return ""
        self._last = now
        return f"{title}: {words(progress, now_s)} ({duration(passed_s)})\n"

    def end(self, title: str, outcome: str) -> str:
        """Return the line of a stage that has ended."""
        return f"{title}: {outcome}\n"


View = TerminalView | PlainView

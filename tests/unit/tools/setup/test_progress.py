"""Lines of pip, Ninja and make become steps of all, time left, and text."""

from collections.abc import Iterable

import pytest

from tools.setup.progress import (
    PlainView,
    Progress,
    Reader,
    TerminalView,
    bar,
    duration,
    left_s,
    read_build,
    read_packages,
    rough,
    words,
)


def after(lines: Iterable[str], reader: Reader = read_build, *, total: int = 0, line_s: float = 1.0) -> Progress:
    progress = Progress(total=total)
    for number, line in enumerate(lines):
        progress = reader(progress, line, number * line_s)
    return progress


def test_ninja_counts_steps() -> None:
    progress = after(["  [1/40] Building C object a.o", "  [12/40] Building CXX object b.o"])
    assert (progress.phase, progress.done, progress.total) == ("compiling", 12, 40)


def test_make_counts_percent() -> None:
    progress = after(["  [  2%] Building C object a.o", "  [ 52%] Building CXX object b.o", "  [ 50%] Built target c"])
    assert (progress.phase, progress.done, progress.total) == ("compiling", 52, 100)


def test_a_build_inside_the_build_does_not_set_it_back() -> None:
    progress = after(["[30/345] Generating shaders", "[1/12] Building CXX object inner.o", "[0/1] Re-checking globs"])
    assert (progress.done, progress.total) == (30, 345)


def test_steps_that_ninja_finds_later_count() -> None:
    assert after(["[30/345] a", "[31/350] b"]).total == 350


def test_a_number_in_brackets_elsewhere_is_no_step() -> None:
    assert after(["note: see [1/2] of the manual", "array[3/4] ="]).total == 0


def test_packages_are_counted_up_to_those_of_the_lock() -> None:
    lines = ["Collecting anyio==4 (from -r x)", "  Downloading anyio.whl", "Requirement already satisfied: idna in y"]
    assert after(lines, read_packages, total=3).done == 2
    assert after([*lines, *lines], read_packages, total=3).done == 3
    assert after([*lines, "Installing collected packages: anyio"], read_packages, total=3).phase == "installing"


def test_the_time_left_follows_the_rate_so_far() -> None:
    lines = [f"[{done}/100] x" for done in range(1, 21)]  # twenty steps, three seconds each
    progress = after(lines, line_s=3.0)
    assert left_s(progress, 57.0) == pytest.approx(57.0 * 80 / 20)


def test_no_time_is_told_from_a_few_steps_or_at_the_end() -> None:
    assert left_s(after(["[1/100] x"]), 30.0) is None
    assert left_s(after([f"[{done}/100] x" for done in range(1, 5)]), 4.0) is None
    assert left_s(after(["[100/100] x"]), 60.0) is None


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (151, "2 min 31 s")])
def test_durations_are_exact(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3, "10 s"), (44, "40 s"), (119, "120 s"), (121, "2 min"), (290, "5 min")]
)
def test_estimates_are_rough(seconds: float, text: str) -> None:
    assert rough(seconds) == text


def test_the_bar_is_as_full_as_the_steps() -> None:
    assert bar(Progress()) == ""
    half = bar(Progress(done=50, total=100))
    assert half.count("━") == half.count("╌")
    assert "╌" not in bar(Progress(done=7, total=7))


def test_a_line_on_a_terminal_is_never_wider_than_it() -> None:
    progress = Progress(phase="compiling", done=138, total=345, began_s=0.0)
    for width in (20, 40, 80, 200):
        line = TerminalView(width).update("[3/5] engine", progress, passed_s=100.0, now_s=90.0)
        assert len(line.removeprefix("\r\x1b[K")) < width
        assert "\n" not in line
    assert "138/345, about 2 min left" in line


def test_a_log_has_a_line_for_each_tenth() -> None:
    view = PlainView()
    progress, written = Progress(), []
    for step in range(1, 346):
        progress = read_build(progress, f"[{step}/345] x", float(step))
        written.append(view.update("[3/5] engine", progress, passed_s=float(step), now_s=float(step)))
    lines = [line for line in written if line]
    assert 10 <= len(lines) <= 11
    assert all(line.endswith("\n") for line in lines)
    assert "about" in lines[3]


def test_a_log_says_when_a_phase_begins() -> None:
    view = PlainView()
    update = [view.update("engine", Progress(phase=phase), passed_s=1, now_s=1) for phase in ("", "a", "a", "b")]
    assert [bool(line) for line in update] == [False, True, False, True]


def test_words_say_only_what_is_known() -> None:
    assert words(Progress(), 1.0) == ""
    assert words(Progress(phase="configuring"), 1.0) == "configuring"
    packages = Progress(phase="collecting", done=3, total=116, unit="packages", began_s=0.0)
    assert words(packages, 60.0) == "collecting 3/116"


def test_a_usual_line_fits_a_usual_terminal() -> None:
    progress = Progress(phase="compiling", done=138, total=345, began_s=0.0)
    line = TerminalView(80).update("[3/5] engine", progress, passed_s=100.0, now_s=90.0)
    assert line.endswith("left")

"""Files that do not answer never stop the search for models."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from common.errors import BadModelFile, ModelUnavailable
from runner.host.files import inspection
from runner.host.files.file_threads import STUCK_MAX, FileStandsStill, FileThreads
from runner.host.files.plain_files import FileStamp
from runner.host.models.model_files import NodeModels
from runner.host.processes import children
from tests.silent_files import GETATTR, LOOKUP, READ, silent_files
from tests.waiting import until
from tools.model_zoo import build

SILENCE_S = 0.5


def errors(files: NodeModels) -> dict[str, str]:
    return {model.name: model.error for model in files.models()}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("silent", [READ, GETATTR, LOOKUP])
async def test_a_file_that_does_not_answer_is_listed_so_and_used_when_it_does(
    tmp_path: Path, models: Path, silent: int
) -> None:
    content = build("tied", tmp_path).read_bytes()
    with silent_files(tmp_path / "mount", {"far.gguf": content}, silent=frozenset({silent})) as mounted:
        (models / "far.gguf").symlink_to(tmp_path / "mount" / "far.gguf")
        build("dense", models)  # found after it
        files = NodeModels(models, tmp_path / "cache", silence_s=SILENCE_S)
        await asyncio.wait_for(files.scan(), 60)
        assert errors(files) == {"dense:latest": "", "far:latest": f"{models}/far.gguf: it does not answer"}
        build("tied", models)
        await asyncio.wait_for(files.scan(), 60)
        assert errors(files)["tied:latest"] == ""
        assert "does not answer" in errors(files)["far:latest"]
        mounted.answer()

        async def looked_again() -> str:
            files._forget_failures()
            await files.scan()
            return errors(files)["far:latest"]

        for _ in range(100):
            if await looked_again() == "":
                break
        assert errors(files)["far:latest"] == ""


async def test_a_known_file_stays_what_it_was_while_it_does_not_answer(tmp_path: Path, models: Path) -> None:
    content = build("tied", tmp_path).read_bytes()
    with silent_files(tmp_path / "mount", {"far.gguf": content}, silent=frozenset()) as mounted:
        (models / "far.gguf").symlink_to(tmp_path / "mount" / "far.gguf")
        files = NodeModels(models, tmp_path / "cache", silence_s=SILENCE_S)
        await files.scan()
        assert errors(files) == {"far:latest": ""}
        mounted.silent = frozenset({LOOKUP, GETATTR, READ})
        with capture_logs() as logs:
            await asyncio.wait_for(files.scan(), 60)
            await asyncio.wait_for(files.scan(), 60)
        assert errors(files) == {"far:latest": ""}, "a replica of it may serve on"
        assert [(line["event"], line["path"]) for line in logs] == [("models.no_answer", f"{models}/far.gguf")]


async def test_a_directory_that_does_not_answer_hides_nothing_else(tmp_path: Path, models: Path) -> None:
    build("dense", models)
    with silent_files(models / "a-mount", {"far.gguf": b"x"}, silent=frozenset({28, GETATTR, LOOKUP})):
        files = NodeModels(models, tmp_path / "cache", silence_s=SILENCE_S)
        await asyncio.wait_for(files.scan(), 60)
        assert errors(files) == {"a-mount:latest": f"{models}/a-mount: it does not answer", "dense:latest": ""}


async def test_threads_that_stand_still_are_bounded_and_end_with_their_file(tmp_path: Path) -> None:
    threads = FileThreads(silence_s=SILENCE_S)
    paths = [tmp_path / "mount" / f"{index}.gguf" for index in range(STUCK_MAX + 1)]
    held = {path.name: b"x" for path in paths}
    with silent_files(tmp_path / "mount", held, silent=frozenset({READ})) as mounted:
        found = await asyncio.gather(*(threads.read_first(path) for path in paths[:STUCK_MAX]), return_exceptions=True)
        assert [type(error) for error in found] == [FileStandsStill] * STUCK_MAX
        assert threads.stuck() == {*paths[:STUCK_MAX]}
        with pytest.raises(ModelUnavailable, match="not read while 8 other files do not answer"):
            await threads.read_first(paths[-1])
        with pytest.raises(FileStandsStill, match="does not answer"):
            await threads.read_first(paths[0])
        mounted.answer()
        await until(lambda: not threads.stuck(), what="the threads end")
        for path in paths:
            await threads.read_first(path)


async def test_an_inspection_that_even_a_kill_does_not_end_is_left_behind_and_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "INSPECT_TIMEOUT_S", 8.0)
    monkeypatch.setattr(children, "REAP_S", 0.5)
    inspector = inspection.Inspector(tmp_path / "cache")
    content = build("tied", tmp_path).read_bytes()
    path = tmp_path / "mount" / "far.gguf"
    with silent_files(tmp_path / "mount", {"far.gguf": content}, silent=frozenset({READ})) as mounted:
        with pytest.raises(ModelUnavailable, match="did not answer in time"):
            await asyncio.wait_for(inspector.look_ahead([path], "far"), 60)
        (left,) = inspector._left.values()
        with pytest.raises(ModelUnavailable, match="it does not answer"):
            await asyncio.wait_for(inspector.look_ahead([path], "far"), 1)
        mounted.answer()
        assert await left.wait(60)
        assert b"general" in await inspector.look_ahead([path], "far")
        assert inspector._left == {}


async def test_a_file_that_is_being_copied_is_listed_so_and_read_when_it_is_complete(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = build("dense", tmp_path).read_bytes()
    copied = models / "copied.gguf"
    files = NodeModels(models, tmp_path / "cache")
    read: list[Path] = []
    check = files.digests.check_answers

    async def noted(stamp: FileStamp) -> None:
        read.append(stamp.path)
        await check(stamp)

    monkeypatch.setattr(files.digests, "check_answers", noted)
    for share in (0, 4, 3, 2):
        copied.write_bytes(content[: len(content) // share] if share else b"")
        await files.scan()
        assert "still being written" in errors(files)["copied:latest"]
        assert files.models()[0].size_bytes == copied.stat().st_size
    assert read == [copied], "a file that grows is not read at every look"
    await files.scan()
    await files.scan()
    assert "truncated, or still being written" in errors(files)["copied:latest"]
    assert read == [copied] * 2, "one that stays as it is has its verdict"
    copied.write_bytes(content)
    await files.scan()
    assert "still being written" in errors(files)["copied:latest"]
    await files.scan()
    assert errors(files) == {"copied:latest": ""}


async def test_names_are_given_and_taken_as_files_come_and_go(tmp_path: Path, models: Path) -> None:
    built = build("dense", tmp_path)
    files = NodeModels(models, tmp_path / "cache")
    (models / "my model.gguf").hardlink_to(built)
    await files.scan()
    assert errors(files) == {"my-model:latest": ""}
    exact = models / "my-model.gguf"
    exact.hardlink_to(built)
    await files.scan()
    assert len(files.models()) == 2
    assert "my-model:latest" in errors(files)
    exact.unlink()
    await files.scan()
    assert errors(files) == {"my-model:latest": ""}


async def test_a_failed_look_at_one_file_is_a_row_of_that_file_alone(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("dense", models)
    (models / "odd.gguf").write_bytes(b"x")
    files = NodeModels(models, tmp_path / "cache")
    look_ahead = files.inspector.look_ahead

    def fail(paths: tuple[Path, ...], key: str) -> object:
        if paths[0].name == "odd.gguf":
            raise RuntimeError("unexpected")
        return look_ahead(paths, key)

    monkeypatch.setattr(files.inspector, "look_ahead", fail)
    await files.scan()
    assert errors(files)["dense:latest"] == ""
    assert "the look at it failed: unexpected" in errors(files)["odd:latest"]
    with pytest.raises(BadModelFile):
        files.find("")

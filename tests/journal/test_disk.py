"""Durable writes: whole or not at all, and loud when they fail."""

import os
import stat
from pathlib import Path

import pytest

from batchgen.errors import JournalError
from batchgen.journal.disk import Disk, free_name


def test_replace_announces_its_steps_in_order_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    steps: list[str] = []
    Disk(steps.append).replace_bytes(tmp_path / "a", b"new", "part")
    assert steps == ["part.begin", "part.written", "part.synced", "part.renamed", "part.done"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("step", ["part.begin", "part.written", "part.synced"])
def test_replace_leaves_the_old_content_until_the_rename(tmp_path: Path, step: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def stop(reached: str) -> None:
        if reached == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Disk(stop).replace_bytes(path, b"new", "part")
    assert path.read_bytes() == b"old"


def test_append_keeps_what_stood_there(tmp_path: Path) -> None:
    disk = Disk()
    disk.append(tmp_path / "log", b"one\n", "log")
    disk.append(tmp_path / "log", b"two\n", "log")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_every_content_is_synced_before_it_is_announced_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("sync folder" if is_folder else "sync file")
        real(descriptor)

    monkeypatch.setattr("batchgen.journal.disk._sync", fsync)
    monkeypatch.setattr(os, "fsync", fsync)
    disk = Disk(events.append)
    disk.replace_bytes(tmp_path / "a", b"x", "part")
    disk.append(tmp_path / "log", b"x", "log")
    assert events == [
        *("part.begin", "part.written", "sync file", "part.synced", "part.renamed", "sync folder", "part.done"),
        *("log.begin", "log.written", "sync file", "sync folder", "log.done"),
    ]


@pytest.mark.parametrize("number", [28, 5, 13])
def test_a_failed_write_names_the_file_and_the_reason(tmp_path: Path, number: int) -> None:
    def fail(step: str) -> None:
        if step.endswith(".written"):
            raise OSError(number, os.strerror(number))

    for write in (Disk(fail).replace_bytes, Disk(fail).append):
        with pytest.raises(JournalError, match=rf"^{tmp_path}/a: cannot be written \({os.strerror(number)}\)"):
            write(tmp_path / "a", b"content", "part")


def test_set_aside_never_overwrites(tmp_path: Path) -> None:
    for content in (b"1", b"2", b"3"):
        (tmp_path / "p").write_bytes(content)
        Disk().set_aside(tmp_path / "p", ".corrupt")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["p.corrupt", "p.corrupt-2", "p.corrupt-3"]
    assert [(tmp_path / name).read_bytes() for name in names] == [b"1", b"2", b"3"]
    assert free_name(tmp_path / "p", ".corrupt").name == "p.corrupt-4"


def test_make_folder_makes_all_of_them(tmp_path: Path) -> None:
    Disk().make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    Disk().make_folder(tmp_path / "a" / "b" / "c")


def test_make_folder_under_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalError, match="cannot be written"):
        Disk().make_folder(tmp_path / "file" / "run")

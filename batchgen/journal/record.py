"""`run.json`: what a run folder belongs to, and each time its job was started.

Knows the file's layout and how two of them differ; never looks at parts or the log.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from batchgen.errors import FingerprintError, RunFolderError
from batchgen.journal.changes import setting_changes

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One input file as the run read it: the recorded list fixes what a row number means."""

    path: str
    size: int
    num_rows: int
    footer_digest: str


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the job that got as far as decoding: its id, and when (ISO time)."""

    run_id: str
    time: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run folder's identity. `num_rows` counts the input rows that take part, after any filter.

    `begun` (ISO time) is the time that prompts may speak of, however often the job is started. `folder_id` tells this
    folder from any other, one begun again for the same output among them.
    """

    folder_id: str
    begun: str
    fingerprint: Mapping[str, Any]
    input_files: tuple[InputRecord, ...]
    num_rows: int
    starts: tuple[Start, ...] = ()

    def started(self, start: Start) -> Self:
        """The record with one more start."""
        return replace(self, starts=(*self.starts, start))

    def to_json(self) -> bytes:
        return json.dumps({"format_version": FORMAT_VERSION} | asdict(self), indent=1).encode() + b"\n"


def read_run_record(path: Path) -> RunRecord | None:
    """The record at `path`; None if there is none; RunFolderError if it is damaged or of a newer batchgen."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); put that right and run again") from error
    except ValueError as error:
        raise _damaged(path) from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise _damaged(path)
    if version > FORMAT_VERSION:
        raise RunFolderError(
            f"{path}: format version {version} is newer than this batchgen reads ({FORMAT_VERSION}); "
            "go on with the version that began the run, or choose another output"
        )
    try:
        return RunRecord(
            folder_id=str(content["folder_id"]),
            begun=str(content["begun"]),
            fingerprint=dict(content["fingerprint"]),
            input_files=tuple(InputRecord(**file) for file in content["input_files"]),
            num_rows=int(content["num_rows"]),
            starts=tuple(Start(**start) for start in content["starts"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path) from error


def require_same_run(path: Path, old: RunRecord, fingerprint: Mapping[str, Any], files: Sequence[InputRecord]) -> None:
    """Raises FingerprintError with every difference if job or input are not those that the record was begun with."""
    now = json.loads(json.dumps(dict(fingerprint)))
    file_changes = input_changes(old.input_files, files)
    changes = file_changes + setting_changes(old.fingerprint, now, is_input_told=bool(file_changes))
    if changes:
        raise FingerprintError(
            f"{path.parent} was begun with other settings or input: {'; '.join(changes)}; "
            "put that back, choose another output path, or begin anew by moving the run folder and the output away"
        )


def input_changes(old: Sequence[InputRecord], new: Sequence[InputRecord]) -> list[str]:
    """How the input files differ, a line each; files that were only moved or renamed are the same files."""
    if [_content(file) for file in old] == [_content(file) for file in new]:
        return []
    before, after = {file.path: file for file in old}, {file.path: file for file in new}
    changes = [f"{path} is no longer in the input" for path in before if path not in after]
    changes += [f"{path} is new in the input" for path in after if path not in before]
    for path in before.keys() & after.keys():
        changes += _changes_of_one(before[path], after[path])
    return sorted(changes) or ["the input files stand in another order"]


def _content(file: InputRecord) -> tuple[int, int, str]:
    return file.size, file.num_rows, file.footer_digest


def _changes_of_one(old: InputRecord, new: InputRecord) -> list[str]:
    if old.num_rows != new.num_rows:
        return [f"{old.path} had {old.num_rows} rows and has {new.num_rows}"]
    if old.size != new.size:
        return [f"{old.path} had {old.size} bytes and has {new.size}"]
    if old.footer_digest != new.footer_digest:
        return [f"{old.path} has other content at the same size"]
    return []


def _damaged(path: Path) -> RunFolderError:
    return RunFolderError(f"{path}: is not a run record; restore it, or move the folder away to begin again")

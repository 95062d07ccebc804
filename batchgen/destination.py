"""Whether a job's output can be written where it says. Leaves nothing behind."""

import fnmatch
import tempfile
from collections.abc import Sequence
from pathlib import Path

from batchgen.errors import OutputError
from batchgen.prompts.files import InputFile


def verify_output(path: Path, files: Sequence[InputFile], sources: Sequence[str] = ()) -> None:
    """Raises OutputError if the output cannot be written, is one of the inputs, or would become one.

    `sources` are the job's input paths as they are written there; a folder or glob among them must not find the output.
    """
    if path.is_dir():
        raise OutputError(f"output.path: {path} is a folder; name a file that ends in .parquet")
    if path.exists():
        same = next((file.path for file in files if path.samefile(file.path)), None)
        if same is not None:
            raise OutputError(f"output.path: {path} is the input {same}; choose another path")
    for source in sources:
        if _finds(source, path):
            raise OutputError(
                f"output.path: {path} would be read as input when the job goes on, for input.path {source} finds it; "
                "write elsewhere"
            )
    _require_writable(path)


def _finds(source: str, path: Path) -> bool:
    """Whether an input folder or glob would find a file at `path`, or what the run folder beside it holds."""
    folder, target = Path(source).expanduser(), path.absolute()
    if folder.is_dir():
        return target.parent.resolve().is_relative_to(folder.resolve())
    if folder.exists():
        return False
    pattern = folder.absolute().parts
    # A glob that finds a folder stands for the files in it.
    return any(_matches(place.parts, pattern) for place in (target, *target.parents))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path fits a glob, part by part; `**` stands for any number of parts."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _require_writable(path: Path) -> None:
    """Tries a file without a name in the nearest folder that is there already."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise OutputError(f"output.path: {path} cannot be written, for {folder} is not a folder")
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
    except OSError as error:
        raise OutputError(f"output.path: {path} cannot be written: {folder}: {error.strerror or error}") from error

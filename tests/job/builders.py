"""Job files for tests, written key by key so that a test knows on which line a key stands."""

from collections.abc import Mapping
from pathlib import Path

REQUIRED: Mapping[str, str] = {
    "model": "some/model",
    "input.path": "in.parquet",
    "input.prompt": '"{{ text }}"',
    "output.path": "out.parquet",
}


def write_job(folder: Path, values: Mapping[str, str | None], name: str = "job.yaml") -> tuple[Path, dict[str, int]]:
    """A job file with these YAML values by dotted key (None leaves a required key out), and each key's line."""
    given = {key: value for key, value in (REQUIRED | dict(values)).items() if value is not None}
    lines: list[str] = []
    numbers: dict[str, int] = {}
    for section in ("", *dict.fromkeys(key.partition(".")[0] for key in given if "." in key)):
        if section:
            lines.append(f"{section}:")
            numbers[section] = len(lines)
        for key, value in given.items():
            parent, _, name_of_key = key.rpartition(".")
            if parent == section:
                lines.append(f"{'  ' if section else ''}{name_of_key}: {value}")
                numbers[key] = len(lines)
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path, numbers

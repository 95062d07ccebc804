"""docs/job.md says of every key what the schema says, and of every kind of error row that there is one."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import yaml

from batchgen.errors import JobError
from batchgen.job.load import job_schema, load_job
from batchgen.types import ErrorKind

TEXT = (Path(__file__).parents[2] / "docs" / "job.md").read_text()


def rows_of(heading: str) -> dict[str, list[str]]:
    """The table under a heading: first column without backticks, then the others."""
    part = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in part.splitlines() if line.startswith("| `")]
    return {first.strip(" `"): [cell.strip() for cell in rest] for first, *rest in cells}


def schema_keys() -> dict[str, tuple[dict[str, Any], bool]]:
    """Each key's schema, and whether it is required (of an optional section, if the section is there)."""
    schema = job_schema()
    keys = {}
    for name, info in schema["properties"].items():
        section = schema["$defs"].get(info.get("$ref", "").removeprefix("#/$defs/"))
        if section is None:
            keys[name] = (info, name in schema["required"])
            continue
        for key, details in section["properties"].items():
            keys[f"{name}.{key}"] = (details, key in section.get("required", []))
    return keys


def test_every_key_stands_there_with_its_default() -> None:
    documented, keys = rows_of("Keys"), schema_keys()
    assert list(documented) == list(keys)
    for key, (info, is_required) in keys.items():
        default = documented[key][1].strip("`")
        if is_required:
            assert default == "required", key
        elif info.get("default") is not None:
            written = info["default"]
            assert default == (json.dumps(written) if isinstance(written, bool) else str(written)), key
        else:
            assert default not in ("required", ""), key


def bounds(schema: Any) -> list[int | float]:
    """All limits of numbers in a value's schema."""
    if isinstance(schema, list):
        return [bound for part in schema for bound in bounds(part)]
    if not isinstance(schema, dict):
        return []
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    own = [value for name, value in schema.items() if name in names]
    return own + [bound for value in schema.values() for bound in bounds(value)]


def test_every_range_stands_there() -> None:
    documented = rows_of("Keys")
    for key, (info, _) in schema_keys().items():
        # The other forms of a key under `sampling` name a column.
        for bound in bounds(info["anyOf"][0] if key.startswith("sampling.") and "anyOf" in info else info):
            assert Decimal(str(bound)) in map(Decimal, re.findall(r"-?\d+(?:\.\d+)?", documented[key][0])), key


def test_every_kind_of_error_row_stands_there() -> None:
    assert sorted(rows_of("Error rows")) == sorted(get_args(ErrorKind))


def test_the_first_example_is_a_job(tmp_path: Path) -> None:
    example = TEXT.split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "x.yaml"
    path.write_text(example)
    assert load_job(path).model_dump(exclude_unset=True) == yaml.safe_load(example) | {"name": "x"}


def test_the_errors_are_the_ones_that_are_shown(tmp_path: Path) -> None:
    shown = TEXT.split("## What is refused")[1].split("```\n")[1].splitlines()
    path = tmp_path / "x.yaml"
    lines = ["model: m", "input:", "  path: a", "  column: c", "output:", "  path: o.parquet", "", "sampling:"]
    path.write_text("\n".join([*lines, "  max_tokens: 0", "  temprature: 1"]))
    try:
        load_job(path)
    except JobError as error:
        assert [line.replace(str(path), "jobs/x.yaml") for line in str(error).splitlines()] == shown
    else:
        raise AssertionError("the job was taken")

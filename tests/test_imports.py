"""Which room may import which: read from the source, so that a wrong import fails even where it is never run."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import batchgen

PACKAGE = Path(batchgen.__file__).parent

# What everything may use.
BASE = ("errors", "types", "schema")

# For each room or module, what else of batchgen it may import; itself always. A name covers what is under it.
ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "types": ("errors",),
    "schema": ("errors", "types"),
    "job": BASE,
    "hub": BASE,
    "prompts": (*BASE, "job", "grammar"),
    "schedule": BASE,
    "engine": BASE,
    "grammar": BASE,
    "journal": (*BASE, "job.fingerprint"),
    "output": (*BASE, "journal.log", "journal.keys", "journal.disk"),
    "backend": (*BASE, "hub", "job", "prompts", "schedule", "engine"),
    "destination": (*BASE, "prompts"),
    "plan": (*BASE, "backend", "destination", "hub", "job", "journal", "prompts"),
    "run": (*BASE, "backend", "plan", "job", "journal", "output", "schedule"),
    "check": (*BASE, "backend", "plan", "job", "prompts"),
    "report": (*BASE, "run", "job", "journal", "output", "prompts.files"),
    "training": (*BASE, "engine", "prompts", "job", "hub"),
    "bench": (*BASE, "plan", "backend", "job", "prompts", "schedule", "engine", "report"),
    "cli": ("",),
    "__main__": ("cli",),
    "__init__": (),
}

MAY_IMPORT_MLX = ("engine", "training", "bench")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Dotted name under batchgen, of the package for an `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every absolute module name that the file imports anywhere in it, type checking included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def faults(name: str, imported: list[str]) -> list[str]:
    """The imports that `name` may not have."""
    room = name.partition(".")[0]
    allowed = (room, *ALLOWED[room])
    found = []
    for target in imported:
        top, _, inside = target.partition(".")
        if top in ("mlx", "mlx_lm") and room not in MAY_IMPORT_MLX:
            found.append(target)
        # `from batchgen import __version__` takes a value, not a room.
        if top == "batchgen" and not inside.startswith("__") and not any(covers(rule, inside) for rule in allowed):
            found.append(target)
    return found


def covers(rule: str, target: str) -> bool:
    return rule == "" or target == rule or target.startswith(rule + ".")


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    assert faults(name_of(path), list(imports(path))) == []


@pytest.mark.parametrize(
    ("name", "imported", "expected"),
    [
        ("schedule.loop", ["batchgen.engine.load"], ["batchgen.engine.load"]),
        ("schedule.loop", ["mlx.core"], ["mlx.core"]),
        ("engine.decoder", ["mlx.core", "batchgen.types.Decoder", "batchgen.engine.row.Row"], []),
        ("output.merge", ["batchgen.journal.recover.recover"], ["batchgen.journal.recover.recover"]),
        ("output.merge", ["batchgen.journal.log.LogRecord", "pyarrow"], []),
        ("journal.log", ["batchgen.job.spec.Job"], ["batchgen.job.spec.Job"]),
        ("run", ["batchgen.report.closing.closing"], ["batchgen.report.closing.closing"]),
        ("cli", ["batchgen.report.closing.closing", "batchgen.__version__"], []),
    ],
)
def test_the_rules_can_be_broken(name: str, imported: list[str], expected: list[str]) -> None:
    assert faults(name, imported) == expected


def test_every_room_has_a_rule() -> None:
    rooms = sorted({name_of(path).partition(".")[0] for path in modules()})
    assert [room for room in rooms if room not in ALLOWED] == []

"""The documents' form."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_lines_of_prose_are_at_most_120_characters(path: Path) -> None:
    """Tables and what stands between fences may be longer."""
    is_prose, long = True, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            is_prose = not is_prose
        if is_prose and len(line) > 120 and not line.startswith("|"):
            long.append(number)
    assert long == []

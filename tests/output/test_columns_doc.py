"""The page on columns lists the columns as the code has them."""

from pathlib import Path

from batchgen.schema import OPTIONAL_COLUMNS, RESULT_COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"


def test_every_column_stands_there_with_type_and_meaning_and_no_other() -> None:
    table = PAGE.read_text().partition("## Metadata")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    columns = (*RESULT_COLUMNS, *OPTIONAL_COLUMNS)
    kinds = {name: str(kind).replace("<item: ", "<").replace("<element: ", "<") for name, kind, _ in columns}
    assert rows == [f"| `{name}` | {kinds[name]} | {meaning} |" for name, _, meaning in columns]

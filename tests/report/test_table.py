"""Text tables."""

from batchgen.report.table import counted, figure, format_table


def test_words_left_figures_right() -> None:
    assert format_table(["task", "rows"], [["a", "1,000"], ["longer", "2"]]) == (
        "task     rows\na       1,000\nlonger      2"
    )


def test_figures() -> None:
    assert [figure(None, 2), figure(1234.567, 1), figure(0.0, 2)] == ["-", "1,234.6", "0.00"]


def test_counts() -> None:
    assert [counted(0, "row"), counted(1, "row"), counted(2000, "row")] == ["0 rows", "1 row", "2,000 rows"]

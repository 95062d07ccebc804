"""Plain text tables: words to the left, figures to the right. Knows nothing of runs."""

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of equal width; the first column is left-aligned, the others right-aligned."""
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    return "\n".join(_line(line, widths) for line in [header, *rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join([first, *rest]).rstrip()


def figure(value: float | None, digits: int) -> str:
    """A number with its thousands apart and this many digits; `-` where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def counted(number: int, word: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"

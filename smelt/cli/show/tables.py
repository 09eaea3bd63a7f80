"""Tables that can be printed on a terminal, as Markdown, or as JSON records."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from smelt.terminal import one_line


@dataclass(frozen=True)
class TextTable:
    """Rows under headings. Columns of integers are aligned right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    title: str = ""

    def records(self) -> list[dict[str, object]]:
        """Return one dictionary per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def markdown(self) -> str:
        """Return the table as Markdown that ends in a line break."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        return "".join(f"| {' | '.join(_cell(x) for x in line)} |\n" for line in lines)

    def print(self, console: Console) -> None:
        """Print the table."""
        table = Table(
            title=self.title or None,
            title_justify="left",
            show_header=any(self.columns),
            box=None,
            pad_edge=False,
        )
        for index, column in enumerate(self.columns):
            numeric = all(isinstance(row[index], int) for row in self.rows)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(one_line(_cell(x)) for x in row))
        if console.is_terminal:
            console.print(table, highlight=False, markup=False)
            return
        # A file or pipe has no width at which lines must be wrapped.
        console.width = _PAGE_WIDTH
        with console.capture() as captured:
            console.print(table, highlight=False, markup=False)
        for line in captured.get().splitlines():
            console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)


_PAGE_WIDTH = 200


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)

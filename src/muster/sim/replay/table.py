"""Reads tables of traces. Every error names the file, the line and the expected content."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path


class BadTrace(ValueError):
    """A trace is not valid. The message says where and why. `line` is 0 if the error is about the whole file."""

    def __init__(self, path: Path, line: int, text: str) -> None:
        super().__init__(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def read_text(path: Path) -> str:
    """Return a file's text. Raises BadTrace if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadTrace(path, 0, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadTrace(path, 0, "is not text in UTF-8") from error


class Row:
    """One line of a table. `columns` gives the position of each column."""

    __slots__ = ("_cells", "_columns", "_line", "_path")

    def __init__(self, path: Path, line: int, columns: Mapping[str, int], cells: Sequence[str]) -> None:
        self._path = path
        self._line = line
        self._columns = columns
        self._cells = cells

    def bad(self, column: str, wanted: str) -> BadTrace:
        """Return an error about this cell."""
        return BadTrace(self._path, self._line, f"{column} is {self._cells[self._columns[column]]!r}, not {wanted}")

    def text(self, column: str) -> str:
        """Return the cell; "" for nan, which pandas writes for missing values."""
        value = self._cells[self._columns[column]].strip()
        return "" if value.lower() in ("nan", "none", "null") else value

    def optional(self, column: str) -> str:
        """Return the cell as `text` does; "" if the table does not have this column."""
        return self.text(column) if column in self._columns else ""

    def number(self, column: str) -> float:
        """Return a number of 0 or more. Raises BadTrace."""
        try:
            value = float(self.text(column))
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e15:
            raise self.bad(column, "a number of 0 or more")
        return value

    def whole(self, column: str) -> int:
        """Return a whole number of 0 or more, also where it is written as 8.0. Raises BadTrace."""
        value = self.number(column)
        if value != int(value):
            raise self.bad(column, "a whole number")
        return int(value)

    def time_s(self, column: str) -> float | None:
        """Convert an ISO time to seconds since the epoch.

        A time without an offset is in UTC. An empty cell gives None.
        """
        text = self.text(column)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.bad(column, "a time such as 2023-03-01 00:18:22+08:00") from None
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def read_rows(path: Path, text: str, columns: Sequence[str], what: str) -> Iterator[Row]:
    """Yield the lines of a CSV table that must have these columns. Raises BadTrace at the first bad line."""
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in columns if name not in header]
        if missing:
            raise BadTrace(path, 1, f"no column {', '.join(missing)}; {what} has {', '.join(columns)}")
        places = {name: place for place, name in enumerate(header)}
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise BadTrace(path, reader.line_num, f"{len(cells)} cells where the header has {len(header)}")
            yield Row(path, reader.line_num, places, cells)
    except csv.Error as error:
        raise BadTrace(path, reader.line_num, str(error)) from error

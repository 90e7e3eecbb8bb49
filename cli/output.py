"""What a command prints: tables for people, exact JSON for programs. Text of others is data, never markup (S-17)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from cli.document import Document
from cli.failures import Problem, Unsuccessful
from model.errors import HostlerError
from model.text import clean_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_WHOLE = 1 << 20
_NO_TERMINAL_WIDTH = 1 << 16


def print_json(document: Any) -> None:
    """Print a document on standard output and nothing else."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Tell a person something on standard error, where it cannot spoil an answer."""
    sys.stderr.write(clean_text(text, _WHOLE) + "\n")
    sys.stderr.flush()


def say_error(error: HostlerError, *, as_json: bool) -> None:
    """Tell an error: its whole detail, and each bad field that it leaves out; with `--json` the problem document."""
    if as_json:
        document = error.document if isinstance(error, Problem) else _describe(error)
        sys.stderr.write(json.dumps(document) + "\n")
        return
    say(f"error: {error.detail}")
    for each in error.errors:
        if each.detail in error.detail:
            continue
        say(f"  {each.pointer or 'the body'}: {each.detail}")
    for hint in error.hints if isinstance(error, Unsuccessful) else ():
        say(f"  {hint}")


def _describe(error: HostlerError) -> Document:
    hints = {"hints": list(error.hints)} if isinstance(error, Unsuccessful) and error.hints else {}
    return {"title": error.title, "detail": error.detail, **hints}


def console(*, error: bool = False) -> Console:
    """Make a console that takes no markup, and cuts nothing off where no terminal reads it."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else _NO_TERMINAL_WIDTH
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width, soft_wrap=width is not None)


def cell(value: object) -> Text:
    """Make a table's cell of anything; control characters are escaped, nothing in it is markup."""
    from rich.text import Text

    return Text(plain(value))


def plain(value: object) -> str:
    """Write a value in one line, for people."""
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        found = cast("Document", value)
        return ", ".join(f"{clean_text(str(key), _WHOLE)}={plain(each)}" for key, each in found.items())
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return ", ".join(plain(each) for each in items)
    return clean_text(str(value), _WHOLE)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table, or, on standard error, that there is nothing."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    if table.row_count == 0:
        say(empty)
        return
    _put(table)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print one thing: a line for each of its facts."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(cell(name), cell(value))
    _put(table)


def _put(table: Table) -> None:
    """Print a table; where no terminal reads it, without the blanks that fill its last column."""
    if sys.stdout.isatty():
        console().print(table)
        return
    target = console()
    with target.capture() as captured:
        target.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_links(links: Iterable[tuple[object, object]]) -> None:
    """Print links, one a line and never broken, so that a terminal can open them."""
    for at, (name, link) in enumerate(links):
        text = cell(f"{plain(name)}  {plain(link)}")
        console().print("\n" * (at == 0), text, sep="", soft_wrap=True)


def moment(text: object) -> str | None:
    """Write a time of the API's as local time and how far it is from now; None stays None."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    away = at - datetime.now(UTC)
    far = _roughly(abs(away.total_seconds()))
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S} ({f'in {far}' if away.total_seconds() > 0 else f'{far} ago'})"


def clock(text: object) -> str:
    """Write a time of the API's as local time of day, which does not change from look to look."""
    try:
        return f"at {datetime.fromisoformat(str(text)).astimezone():%H:%M:%S}"
    except ValueError:
        return "later"


def age(text: object) -> str | None:
    """Write how long ago a time of the API's was."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    return _roughly((datetime.now(UTC) - (at if at.tzinfo else at.replace(tzinfo=UTC))).total_seconds())


def _roughly(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"

"""Show work while it goes on, on standard error: a bar on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from cli.output import say
from model.text import clean_text

if TYPE_CHECKING:
    from cli.steps import Stand


class Display(Protocol):
    """What takes each stand of the work."""

    def __enter__(self) -> Display: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
    def show(self, stand: Stand) -> None: ...


def make_display(title: str, total: int, *, silent: bool = False) -> Display:
    """Make what fits standard error. `total` 0: how many steps there will be is not known."""
    if silent:
        return Silent()
    return Bar(title, total) if sys.stderr.isatty() else Lines(title)


class Silent:
    """Show nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def show(self, stand: Stand) -> None:
        pass


class Lines(Silent):
    """Say each new step once; what it tells about itself in between is left out."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._said = ""

    def show(self, stand: Stand) -> None:
        words = stand.words or stand.detail
        if words and words != self._said:
            self._said = words
            say(f"{self._title}: {stand.text}")


class Bar:
    """Draw a bar of steps, or a spinner where their number is not known."""

    def __init__(self, title: str, total: int) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from cli.output import console

        bar = (BarColumn(bar_width=24),) if total else ()
        self._total = total
        self._progress = Progress(
            SpinnerColumn(finished_text=" "),
            # Without markup the texts are data; they are cleaned before they get here.
            TextColumn("{task.fields[title]}", markup=False),
            *bar,
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console(error=True),
            refresh_per_second=10,
        )
        self._task = self._progress.add_task("", total=total or None, title=clean_text(title, 80), text="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, stand: Stand) -> None:
        self._progress.update(
            self._task, completed=stand.done if self._total else None, text=clean_text(stand.text, 512)
        )

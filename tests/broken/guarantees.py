"""Write docs/guarantees.md: a rule counts only with a patch that breaks it and a test that notices.

`python -m tests.broken.guarantees` writes the file; with `--check` it only says whether it is as it should be.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.broken.patches import PROJECT, Breakage, all_breakages

DOCUMENT = PROJECT / "docs" / "guarantees.md"
_TOP = """# Guarantees

What Hostler promises of a VM, under which failures, and the test that proves it. A rule is listed here only if
`tests/broken/` holds a patch that breaks it and the named test then fails: `make test-slow` applies every one of them
to a copy of the code. This file is made from those patches by `python -m tests.broken.guarantees`.

| rule | guarantee | survives | proof |
| --- | --- | --- | --- |
"""


def render(breakages: tuple[Breakage, ...]) -> str:
    """Return the document; the patches of one rule share a row each."""
    return _TOP + "".join(_row(one) for one in breakages)


def _row(one: Breakage) -> str:
    cells = (one.rule, one.guarantee, one.survives, "<br>".join(_link(test) for test in one.tests))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{Path(path).stem}: {name.removeprefix('test_').replace('_', ' ')}](../{path})"


def main(arguments: list[str]) -> int:
    wanted = render(all_breakages())
    if arguments == ["--check"]:
        if DOCUMENT.exists() and DOCUMENT.read_text() == wanted:
            return 0
        print("docs/guarantees.md is stale: run `python -m tests.broken.guarantees`", file=sys.stderr)
        return 1
    DOCUMENT.write_text(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Each test that docs/assumptions.md names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_every_test_that_would_notice_exists():
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (PROJECT / "docs" / "assumptions.md").read_text()))
    assert len(named) > 30
    missing = [f"{path}::{name}" for path, name in named if not _has(PROJECT / path, name)]
    assert not missing


def _has(path: Path, name: str) -> bool:
    if not path.exists():
        return False
    found = ast.walk(ast.parse(path.read_text()))
    return not name or any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in found
    )

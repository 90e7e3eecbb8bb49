"""Each test that a page of docs/ names as its proof is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


@pytest.mark.parametrize(("page", "least"), [("assumptions.md", 30), ("upgrades.md", 8)])
def test_every_test_that_would_notice_exists(page: str, least: int):
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (PROJECT / "docs" / page).read_text()))
    assert len(named) > least
    missing = [f"{path}::{name}" for path, name in named if not _has(PROJECT / path, name)]
    assert not missing


def _has(path: Path, name: str) -> bool:
    if not path.exists():
        return False
    found = ast.walk(ast.parse(path.read_text()))
    return not name or any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in found
    )

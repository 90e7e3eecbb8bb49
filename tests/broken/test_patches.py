"""The patches themselves: each still applies, names tests that exist, and stands in the document."""

from __future__ import annotations

import ast
import subprocess

import pytest

from tests.broken.guarantees import DOCUMENT, render
from tests.broken.patches import PROJECT, Breakage, all_breakages

BREAKAGES = all_breakages()


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: one.name)
def test_a_patch_applies_and_its_tests_name_the_rule(breakage: Breakage) -> None:
    """A patch that does not apply any more proves nothing: it moves with the code that it breaks."""
    applied = subprocess.run(
        ["git", "apply", "--check", str(breakage.path)], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    for test in breakage.tests:
        assert _names(test, breakage.rule), f"{test} does not exist, or its docstring does not name {breakage.rule}"


def test_the_document_is_made_of_the_patches() -> None:
    """A rule stands in docs/guarantees.md only with its proof."""
    assert DOCUMENT.read_text() == render(BREAKAGES), "run `python -m tests.broken.guarantees`"


def _names(test: str, rule: str) -> bool:
    """Say whether a test is there and its own docstring, or its module's, names the rule."""
    path, _, name = test.partition("::")
    if not (PROJECT / path).is_file():
        return False
    module = ast.parse((PROJECT / path).read_text())
    wanted = name.partition("[")[0].rpartition("::")[2]
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == wanted:
            told = f"{ast.get_docstring(node) or ''} {ast.get_docstring(module) or ''}"
            return rule in told
    return False

"""What would make a replay go another way, read out of the sources of all that runs inside a workflow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from workflows import policies

ROOT = Path(policies.__file__).parent.parent
SOURCES = sorted([*(ROOT / "workflows").glob("*.py"), *(ROOT / "model").rglob("*.py")])
UNORDERED_CALLS = {"set", "frozenset"}
FORBIDDEN = {
    "asyncio.wait": "its results are a set",
    "asyncio.as_completed": "its order is that of the clock",
    "asyncio.sleep": "the workflow's own has a summary",
    "time.time": "workflow.now()",
    "time.monotonic": "workflow.now()",
    "datetime.now": "workflow.now()",
    "uuid.uuid4": "workflow.uuid4()",
    "random.random": "workflow.random()",
    "random.uniform": "workflow.random()",
}


def dotted(node: ast.expr) -> str:
    """Name what is called, as `asyncio.wait`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_unordered(node: ast.expr) -> bool:
    """Say whether an expression is plainly a set."""
    if isinstance(node, ast.Call) and dotted(node.func) in UNORDERED_CALLS:
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub):
        return is_unordered(node.left) or is_unordered(node.right)
    return isinstance(node, ast.Set | ast.SetComp)


def faults(source: str) -> list[str]:
    """List what of a source differs between two runs of the same history."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and is_unordered(node.iter):
            found.append(f"line {node.iter.lineno}: a set has no order: sort it first")
        if isinstance(node, ast.Call) and dotted(node.func) in FORBIDDEN:
            found.append(f"line {node.lineno}: {dotted(node.func)}: {FORBIDDEN[dotted(node.func)]}")
        if isinstance(node, ast.ImportFrom) and node.module in ("asyncio", "time", "random"):
            found.append(f"line {node.lineno}: import {node.module} as a whole, so that its calls are seen here")
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_case_o3_no_workflow_depends_on_order_or_clock(file: Path):
    """Case O3: no iteration over sets, no asyncio.wait, no as_completed, no clock but the workflow's."""
    allowed = {"model/ids.py"}  # draws ids for the API; workflows get theirs from Temporal
    if str(file.relative_to(ROOT)) not in allowed:
        assert faults(file.read_text()) == []


def test_case_o3_each_fault_is_seen():
    """A lint that cannot fail proves nothing."""
    for line in (
        "for x in {1, 2}: pass",
        "[x for x in set(y)]",
        "for x in set(a) - b: pass",
        "asyncio.wait(tasks)",
        "asyncio.as_completed(tasks)",
        "from asyncio import wait",
        "datetime.now()",
    ):
        assert len(faults(line)) == 1, line

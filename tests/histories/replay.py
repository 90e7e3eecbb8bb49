"""Replay recorded histories against the workflows on the path: `python -m tests.histories.replay FILE…`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from temporalio.client import WorkflowHistory

from runtime.converter import data_converter
from runtime.finish import finish
from workers.replay import replay


async def replay_files(files: list[Path]) -> int:
    """Replay each file; print those that fail, and return their number."""
    histories = [WorkflowHistory.from_json(workflow_id_of(file), file.read_text()) for file in files]
    results = await replay(histories, data_converter(None))
    for file, result in zip(files, results, strict=True):
        if result.failure is not None:
            print(f"{file.name}: {result.failure}")
    failed = sum(result.failure is not None for result in results)
    print(f"{len(files)} replayed, {failed} failed")
    return failed


def workflow_id_of(file: Path) -> str:
    return f"vm/{file.stem}"


if __name__ == "__main__":
    finish(1 if asyncio.run(replay_files([Path(name) for name in sys.argv[1:]])) else 0)

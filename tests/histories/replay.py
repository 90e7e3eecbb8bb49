"""Replay recorded histories against the workflows on the path: `python -m tests.histories.replay FILE…`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from runtime.converter import data_converter
from runtime.finish import finish
from runtime.interceptors import ControlInterceptor
from runtime.temporal import workflow_runner
from workflows.converge import ConvergeVm
from workflows.create import CreateVm
from workflows.reap import ReapVm


async def replay(files: list[Path]) -> int:
    """Replay each file; print those that fail, and return their number."""
    replayer = Replayer(
        workflows=[CreateVm, ConvergeVm, ReapVm],
        data_converter=data_converter(None),
        workflow_runner=workflow_runner(),
        interceptors=[ControlInterceptor()],
    )
    histories = [WorkflowHistory.from_json(workflow_id_of(file), file.read_text()) for file in files]
    names = {history.run_id: file.name for history, file in zip(histories, files, strict=True)}
    results = await replayer.replay_workflows(_each(histories), raise_on_replay_failure=False)
    for run_id, failure in results.replay_failures.items():
        print(f"{names[run_id]}: {type(failure).__name__}: {failure}")
    failed = len(results.replay_failures)
    print(f"{len(files)} replayed, {failed} failed")
    return failed


async def _each(histories: list[WorkflowHistory]) -> AsyncIterator[WorkflowHistory]:
    for history in histories:
        yield history


def workflow_id_of(file: Path) -> str:
    return f"vm/{file.stem}"


if __name__ == "__main__":
    finish(1 if asyncio.run(replay([Path(name) for name in sys.argv[1:]])) else 0)

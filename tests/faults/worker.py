"""A worker of the product as a process of its own that stands still at each activity until it is told to go on.

`python -m tests.faults.worker control|host SOCKET`. All of it is the product's; one interceptor more stands before
those that a worker has. It names the activity that it is about to run, waits for a line, and once the activity has
worked says so and waits again, before Temporal hears of it: killed while it stands, it is killed exactly there.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from runtime import temporal
from tests.faults.apart import TASK_TIMEOUT
from tests.faults.faults import stand_before, use_in_hand
from workers import control, host, process


class Standing(Interceptor):
    def __init__(self, socket: str) -> None:
        self.socket = socket

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Standing(next, self.socket)


class _Standing(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, socket: str) -> None:
        super().__init__(next)
        self._socket = socket

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            await _stand(reader, writer, json.dumps(use_in_hand()))
            answer = await super().execute_activity(input)
            await _stand(reader, writer, "it has worked")
            return answer
        finally:
            writer.close()


async def _stand(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: str) -> None:
    writer.write(words.encode() + b"\n")
    if not await reader.readline():
        raise ConnectionError("the test has gone away")


def main(kind: str, socket: str) -> None:
    temporal.TASK_TIMEOUT = TASK_TIMEOUT
    control.control_worker_options = stand_before(control.control_worker_options, Standing(socket))
    host.host_worker_options = stand_before(host.host_worker_options, Standing(socket))
    if kind == "control":
        process.run(control.main)
    else:
        host.main(())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Operations: what was asked of a VM, or began by itself, and how it ended (A-6)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import asyncpg

from model.errors import NotFound
from model.ids import new_id
from model.temporal import vm_workflow_id
from model.vm import Phase
from store.database import reading

if TYPE_CHECKING:
    from store.database import Connection, Pool

OperationKind = Literal[
    "create",
    "change",
    "power",
    "restart",
    "rebuild",
    "retry",
    "delete",
    "undelete",
    "refresh",
    "converge",
    "adopt",
    "vanish",
]
OperationResult = Literal["settled", "failed", "superseded", "gone"]

_COLUMNS = """id, vm_id, project, kind, generation, workflow_id, run_id, attempts, created_at, started_at, ended_at,
    result, error"""


@dataclass(frozen=True)
class Operation:
    """One operation. `attempts` counts the passes that worked on it; `result` is None while it is open."""

    id: str
    vm_id: str
    project: str
    kind: OperationKind
    generation: int
    workflow_id: str
    run_id: str | None
    attempts: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    result: OperationResult | None
    error: str | None


class OperationStore:
    """The operations, read by users."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list_of(
        self, project: str | None, vm_id: str, *, limit: int = 100, before: str | None = None
    ) -> tuple[Operation, ...]:
        """List a VM's operations, newest first, from the one below the id `before` on; also of a VM that is gone.

        project: None reads every project's (S-31).
        """
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"""select {_COLUMNS} from operations
                where vm_id = $1 and ($2::text is null or project = $2) and ($3::text is null or id < $3)
                order by id desc limit $4""",
                vm_id,
                project,
                before,
                limit,
            )
        return tuple(to_operation(record) for record in records)

    async def get(self, project: str | None, operation_id: str) -> Operation:
        """Return one operation; raise NotFound, also for another project's."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                f"select {_COLUMNS} from operations where id = $1 and ($2::text is null or project = $2)",
                operation_id,
                project,
            )
        if record is None:
            raise NotFound(f"there is no operation {operation_id}")
        return to_operation(record)


def to_operation(record: asyncpg.Record) -> Operation:
    """Make an Operation of a record with its columns."""
    return Operation(**{name: record[name] for name in Operation.__dataclass_fields__})


async def open_operation(
    connection: Connection, *, vm_id: str, project: str, kind: OperationKind, generation: int
) -> str:
    """Write down what was accepted and return the operation's id; the next pass takes it up."""
    operation_id = new_id()
    await connection.execute(
        """insert into operations (id, vm_id, project, kind, generation, workflow_id)
        values ($1, $2, $3, $4, $5, $6)""",
        operation_id,
        vm_id,
        project,
        kind,
        generation,
        vm_workflow_id(vm_id),
    )
    return operation_id


async def begin_unasked(connection: Connection, vm_id: str, phase: Phase) -> None:
    """Write down work that nobody asked for (a guest that died, a host that rebooted), unless one is open."""
    kind: OperationKind = "create" if phase is Phase.CREATING else "converge"
    await connection.execute(
        """insert into operations (id, vm_id, project, kind, generation, workflow_id, run_id, attempts, started_at)
        select $2, v.id, v.project, $3, v.generation, $4, v.run_id, 1, now() from vms v
        where v.id = $1 and not exists (select 1 from operations o where o.vm_id = v.id and o.ended_at is null)""",
        vm_id,
        new_id(),
        kind,
        vm_workflow_id(vm_id),
    )


async def take_up_operations(connection: Connection, vm_id: str, run_id: str) -> None:
    """Hand what is open over to a new pass: what its predecessor left, and what was accepted since."""
    await connection.execute(
        """update operations set run_id = $2, attempts = attempts + 1, started_at = coalesce(started_at, now())
        where vm_id = $1 and ended_at is null""",
        vm_id,
        run_id,
    )


async def end_operations(
    connection: Connection,
    vm_id: str,
    result: OperationResult,
    *,
    error: str | None = None,
    kinds: tuple[OperationKind, ...] | None = None,
) -> None:
    """End what is open, or of it only the given kinds. A settled one has no error."""
    await connection.execute(
        """update operations set ended_at = now(), result = $2, error = $3
        where vm_id = $1 and ended_at is null and ($4::text[] is null or kind = any($4))""",
        vm_id,
        result,
        error if result == "failed" else None,
        list(kinds) if kinds is not None else None,
    )

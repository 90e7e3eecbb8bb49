"""Follow a VM until its work is done. What is followed goes on whether or not anybody watches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from cli.client import Api
from cli.document import Document
from cli.failures import Left, NotReachable, Problem, TimedOut, Unsuccessful
from cli.progress import make_display

if TYPE_CHECKING:
    from model.step import StepKind

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0
SILENCE_LIMIT_SECONDS = 60.0
"""How long the API may be away, as while it is being restarted, before a wait gives up."""


@dataclass(frozen=True)
class Watch:
    """What is waited for. `steps` are those that the work consists of; `until_gone`: the row itself must vanish."""

    title: str
    steps: tuple[StepKind, ...] = ()
    timeout: timedelta | None = None
    silent: bool = False
    until_gone: bool = False


def follow(api: Api, vm: Document, watch: Watch) -> Document:
    """Return the row once it is settled, or its last one when it was waited for to be gone.

    Errors: TimedOut, Left (Ctrl-C), NotReachable after a minute of silence.
    """
    from cli.steps import Steps

    steps = Steps(watch.steps)
    give_up = None if watch.timeout is None else time.monotonic() + watch.timeout.total_seconds()
    pause = FIRST_PAUSE_SECONDS
    try:
        with make_display(watch.title, len(watch.steps), silent=watch.silent) as display:
            while True:
                display.show(steps.see(vm))
                if vm.get("settled") and not watch.until_gone:
                    return vm
                if give_up is not None and time.monotonic() + pause > give_up:
                    raise TimedOut(describe_wait(watch, vm))
                time.sleep(pause)
                pause = min(pause * 1.25, LONGEST_PAUSE_SECONDS)
                found = look(api, str(vm["id"]))
                if found is None:
                    return finish_gone(vm, watch)
                vm = found
    except KeyboardInterrupt:
        name = vm.get("name")
        raise Left(
            f"left; the work goes on. `hostler vm wait {name}` waits for it, `vm show {name}` shows it"
        ) from None


def look(api: Api, vm_id: str) -> Document | None:
    """Return the row, or None once it is gone; bear with an API that is away for a while."""
    since = time.monotonic()
    while True:
        try:
            return api.get(f"/v1/vms/{vm_id}")
        except Problem as problem:
            if problem.http_status in (404, 410):
                return None
            if problem.http_status < 500 or time.monotonic() - since > SILENCE_LIMIT_SECONDS:
                raise
        except NotReachable:
            if time.monotonic() - since > SILENCE_LIMIT_SECONDS:
                raise
        time.sleep(LONGEST_PAUSE_SECONDS / 2)


def finish_gone(vm: Document, watch: Watch) -> Document:
    if watch.until_gone:
        return vm
    raise Unsuccessful(f"the VM {vm.get('name')} is gone: it was deleted while it was waited for")


def describe_wait(watch: Watch, vm: Document) -> str:
    doing = vm.get("status_detail") or vm.get("last_error") or f"phase {vm.get('phase')}"
    return f"{watch.title} did not end in time ({doing}); it goes on, and `hostler vm wait {vm.get('name')}` waits on"


def check_outcome(vm: Document) -> None:
    """Raise Unsuccessful for a settled VM that is failed, or is not running, paused or stopped as it is wanted."""
    phase, power, wanted = vm.get("phase"), vm.get("power_state"), vm.get("desired_power_state")
    if phase == "failed":
        error = vm.get("last_error") or "no reason was recorded"
        raise Unsuccessful(f"{vm.get('name')} failed: {error}")
    if phase == "ready" and power is not None and power != wanted:
        raise Unsuccessful(f"{vm.get('name')} is {power}, wanted is {wanted}: {vm.get('last_error') or 'no reason'}")

"""What rows say that are odd, old or half gone: nothing of it breaks a read, a list or a delete."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import httpx2
import pytest

from model.ids import new_id
from model.passes import ClaimRequest
from store.passes import PassStore
from tests.api.conftest import IMAGE, SHA, World, report_of, served, vm_body, vm_report

ODD_ROWS = {
    "nothing was ever seen": "observed_at = null, observed_power_state = null, address = null, last_exit = null",
    "no host reports": "phase = 'failed', last_error = null",
    "failed without a word": "phase = 'failed', last_error = '', status_detail = '', resting = true",
    "times before all clocks": "observed_at = '-infinity', retry_at = '-infinity', first_ready_at = '0001-01-01'",
    "a deadline beyond the calendar": """deleted = true, quarantine_kind = 'tombstone', quarantine_since = '-infinity',
        quarantine_grace = '30 days', destroy_at = 'infinity'""",
    "an exit by nobody": """last_exit = '{"at": "0001-01-01T00:00:00+14:00", "by": "host", "reason": ""}'""",
    "an exit that cannot be read": """last_exit = '{"by": "a stranger", "pid": 0}'""",
    "counters that ran away": "restart_count = 2147483647, failures = 2147483647, observed_generation = 9999999999",
}


@pytest.mark.parametrize("row", ODD_ROWS)
async def test_case_i9_an_odd_row_is_shown_and_breaks_no_list(world: World, row: str) -> None:
    """Case I9: null for what nobody knows; one VM's row never keeps another's from being seen."""
    other = await world.create()
    vm = await world.create()
    await world.pool.execute(f"update vms set {ODD_ROWS[row]} where id = $1", vm["id"])
    if row == "no host reports":
        await world.pool.execute("update hosts set last_report_at = null, instance_id = null")
    shown = await world.call("GET", f"/v1/vms/{vm['id']}")
    assert (shown.status_code, shown.json()["id"]) == (200, vm["id"])
    for path in ("/v1/vms", "/v1/hosts/h1/quarantined", "/v1/hosts"):
        assert (await world.call("GET", path)).status_code == 200
    listed = [each["id"] for each in (await world.call("GET", "/v1/vms")).json()["items"]]
    assert {vm["id"], other["id"]} == set(listed)
    assert (await world.call("DELETE", f"/v1/vms/{vm['id']}")).status_code == 202


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "1969-12-31T23:59:59Z"])
async def test_case_i9_what_a_host_with_a_mad_clock_reports_is_shown(world: World, at: str) -> None:
    """Case I9: its times are data; later looks of a clock that was put right still count."""
    host_id, credential = await world.add_host(name="mad", instance_id="i1", machine_id="m1")
    vm = await world.create(host="mad")
    exit_ = {"at": at, "by": "host", "reason": "gone"}
    odd = {"last_exit": exit_, "seen_at": at}
    report = report_of(1, [vm_report(vm["id"], power_state=None, unreadable="broken", observed=odd)])
    answer = await world.as_host(credential, "POST", "/v1/host/report", json=report)
    shown = await world.call("GET", f"/v1/vms/{vm['id']}")
    assert shown.status_code == 200
    report = report_of(2, [vm_report(vm["id"], power_state=None, unreadable="mended in part")])
    assert (await world.as_host(credential, "POST", "/v1/host/report", json=report)).status_code == 200
    assert "mended in part" in (await world.call("GET", f"/v1/vms/{vm['id']}")).text, answer.text
    assert host_id


async def test_case_i5_a_quarantined_vm_is_listed_and_nobody_makes_another_over_it(world: World) -> None:
    """Case I5, L-R7: phase and end are told, whatever its host says; id and name are taken until then."""
    _, credential = await world.add_host(name="h2", instance_id="i1", machine_id="m1")
    vm_id = new_id()
    body = vm_body(host="h2")
    assert (await world.call("PUT", f"/v1/vms/{vm_id}", json=body)).status_code == 201
    assert (await world.call("DELETE", f"/v1/vms/{vm_id}")).status_code == 202
    quarantined = vm_report(vm_id, power_state="stopped", quarantined_at="2026-01-01T00:00:00Z", completed=True)
    answer = await world.as_host(credential, "POST", "/v1/host/report", json=report_of(1, [quarantined]))
    assert answer.status_code == 200
    for path in ("/v1/vms", "/v1/hosts/h2/quarantined"):
        (listed,) = (await world.call("GET", path)).json()["items"]
        assert (listed["id"], listed["phase"], listed["power_state"]) == (vm_id, "quarantined", "stopped")
        assert listed["quarantine"]["destroy_at"] > listed["quarantine"]["since"]
        assert listed["memory_mib"] == 512
    again = await world.call("PUT", f"/v1/vms/{vm_id}", json=body | {"memory_mib": 1024})
    assert again.status_code == 409
    other = await world.call("POST", "/v1/vms", json=body)
    assert (other.status_code, "will be destroyed at" in other.json()["detail"]) == (409, True)


async def test_case_f3_every_delete_of_many_at_once_succeeds(world: World) -> None:
    """Case F3: whoever comes second has reached the goal too; once it is gone the answer says that."""
    vm = await world.create()
    path = f"/v1/vms/{vm['id']}"
    answers = await asyncio.gather(*(world.call("DELETE", f"{path}?now=true") for _ in range(10)))
    assert {answer.status_code for answer in answers} == {202}
    await world.pool.execute("update vms set destroying = true where id = $1", vm["id"])
    assert (await world.call("DELETE", path)).status_code == 202
    await world.pool.execute("insert into gone (vm_id, project, name, host_id, pass_number) select id, project, name, "
                             "host_id, 1 from vms where id = $1", vm["id"])  # fmt: skip
    await world.pool.execute("delete from vms where id = $1", vm["id"])
    assert (await world.call("DELETE", path)).status_code == 410


async def test_case_f5_a_delete_needs_nothing_that_its_vm_refers_to(world: World) -> None:
    """Case F5: its image was deleted, its host is cordoned and silent, its secrets cannot be opened any more."""
    image = await world.call("POST", "/v1/images", json={"name": "base", "rootfs": IMAGE})
    assert image.status_code == 201, image.text
    vm = await world.create(image="base")
    await world.pool.execute("delete from images")
    await world.pool.execute("update vms set secrets = 'garbled' where id = $1", vm["id"])
    await world.pool.execute("update hosts set status = 'cordoned', last_report_at = null")
    assert (await world.call("GET", f"/v1/vms/{vm['id']}")).status_code == 200
    deleted = await world.call("DELETE", f"/v1/vms/{vm['id']}")
    assert (deleted.status_code, deleted.json()["phase"]) == (202, "quarantined")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_case_f9_ten_thousand_polls_leave_nothing_open(world: World) -> None:
    """Case F9: descriptors stay as they were, over real connections too, and the delete works."""
    vm = await world.create()
    path = f"/v1/vms/{vm['id']}"
    async with served(world.parts) as url:
        token = {"authorization": f"Bearer {await world.token()}"}

        async def poll(count: int) -> None:
            for _ in range(count):
                async with httpx2.AsyncClient(base_url=url, headers=token, timeout=60) as client:
                    assert (await client.get(path)).status_code == 200

        await asyncio.gather(*(poll(5) for _ in range(20)))
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(97):
            await asyncio.gather(*(world.call("GET", path) for _ in range(100)))
        await asyncio.gather(*(poll(10) for _ in range(20)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while len(os.listdir("/proc/self/fd")) > before + 5:  # noqa: ASYNC110, PTH208
                    await asyncio.sleep(0.1)
        assert len(os.listdir("/proc/self/fd")) <= before + 5  # noqa: PTH208
        assert (await world.call("DELETE", path)).status_code == 202


@pytest.mark.parametrize("image", [{"url": IMAGE["url"]}, {**IMAGE, "sha256": ""}, {**IMAGE, "sha256": SHA[1:]}])
async def test_case_j8_an_image_without_its_checksum_is_refused(world: World, image: dict[str, Any]) -> None:
    """Case J8, L-C8: so the same URL with other content never becomes the same image; the answer names the field."""
    refused = await world.call("POST", "/v1/vms", json=vm_body(image=image))
    assert refused.status_code == 422
    assert "sha256" in refused.text
    assert (await world.call("POST", "/v1/images", json={"name": "base", "rootfs": image})).status_code == 422


async def test_case_m5_changes_that_meet_queue_and_none_fails(world: World) -> None:
    """Case M5: the row's lock is waited for; each change is taken, and the generation counts them all."""
    vm = await world.create()
    path = f"/v1/vms/{vm['id']}"
    answers = await asyncio.gather(
        *(world.call("PATCH", path, json={"labels": {"n": str(number)}}) for number in range(30))
    )
    assert {answer.status_code for answer in answers} <= {200, 202}, [answer.text for answer in answers]
    assert (await world.call("GET", path)).json()["generation"] == vm["generation"] + 30


async def test_case_o2_what_a_pass_reads_does_not_grow_with_its_host(world: World) -> None:
    """Case O2: a run handles one VM, and reads nothing that is as long as its host has VMs."""
    host_id = await world.pool.fetchval("select id from hosts where name = 'h1'")
    vm = await world.create()
    passes = PassStore(world.pool)
    before = await passes.claim(ClaimRequest(vm_id=vm["id"], run_id="one"))
    await world.pool.execute(
        """insert into vms (id, project, name, host_id, spec, secrets, input_digest, fingerprint, power_state,
            stop_timeout_seconds, on_guest_poweroff, mac)
        select 'v' || n, project, 'v' || n, $1, spec, secrets, input_digest, fingerprint, power_state,
            stop_timeout_seconds, on_guest_poweroff, 'mac' || n from vms, generate_series(1, 2000) n where id = $2""",
        host_id,
        vm["id"],
    )
    after = await passes.claim(ClaimRequest(vm_id=vm["id"], run_id="two"))
    assert before is not None
    assert after is not None
    assert len(after.model_dump_json()) <= len(before.model_dump_json()) + 8

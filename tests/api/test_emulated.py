"""Emulation is no wall between a guest and its host: a VM's row says so (S-16)."""

from __future__ import annotations

import pytest

from tests.api.conftest import World, report_of, vm_report


@pytest.mark.parametrize("emulated", [True, False])
async def test_a_row_says_whether_its_guest_is_emulated(world: World, emulated: bool) -> None:
    """S-16: as its host told last, to its project, too; unknown before, and a lost record erases nothing."""
    _, credential = await world.add_host(name="h2", instance_id=None, last_report_at=None)
    await world.as_host(credential, "POST", "/v1/host/report", json=report_of(1))
    vm_id = (await world.create(host="h2"))["id"]
    await world.pool.execute("update vms set project = 'red'")
    path = f"/v1/vms/{vm_id}"
    assert (await world.call("GET", path)).json()["emulated"] is None
    news = vm_report(vm_id, observed={"emulated": emulated})
    await world.as_host(credential, "POST", "/v1/host/report", json=report_of(2, [news]))
    for who in ({}, {"role": "viewer", "project": "red"}):
        assert (await world.call("GET", path, **who)).json()["emulated"] is emulated
    lost = vm_report(vm_id, revision=2, power_state=None, unreadable="its record is torn")
    await world.as_host(credential, "POST", "/v1/host/report", json=report_of(3, [lost]))
    assert (await world.call("GET", path)).json()["emulated"] is emulated

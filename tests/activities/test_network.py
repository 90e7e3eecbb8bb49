"""A VM's firewall on a real host: set before the boot, and changed while the guest runs (N-5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model.errors import Superseded, Unavailable
from model.firewall import OPEN, Firewall, network_digest
from model.record import View
from model.vm import PowerState
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.processes import SleepingGuests

HERE = {"protocol": "tcp", "ports": "22", "prefixes": ["192.0.2.0/24"]}
CLOSED = Firewall(enabled=True)
SSH = Firewall.model_validate({"enabled": True, "inbound": [HERE]})


@pytest.fixture
async def world(tmp_path: Path, netns: str):
    world = HostWorld(tmp_path, netns, lambda names, boot_id: SleepingGuests(names, tmp_path / "monitors", boot_id))
    world.add("vm1")
    await world.restart()
    yield world
    await world.close()


async def wish(world: HostWorld, firewall: Firewall, **changed: Any) -> View:
    """Have a pass make the firewall so."""
    world.add("vm1", firewall=firewall)
    return await world.run_pass(make_row("vm1", network_digest=network_digest(firewall), **changed))


async def rules(world: HostWorld) -> frozenset[str]:
    """Return what the kernel holds of the VM's own firewall."""
    found = (await world.host.parts.network.inventory()).elements
    return frozenset(line for line in found if "in_hst" in line or "out_hst" in line or "walled" in line)


async def test_it_is_there_when_the_guest_begins_and_changes_while_it_runs(
    world: HostWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N-5: live, without a restart of the guest; disabled, nothing of it is left."""
    network = world.host.parts.network
    opened: list[frozenset[str]] = []

    async def booted_with(a: Any, *, guard: Any) -> None:
        await ensure(a, guard=guard)
        opened.append(await rules(world))

    ensure = network.ensure
    monkeypatch.setattr(network, "ensure", booted_with)
    view = await wish(world, SSH)
    assert any('"tcp"' in line for line in opened[0]), "before the tap is opened for the guest"
    process = view.observed.process
    before = await rules(world)
    for generation, firewall in enumerate((CLOSED, OPEN, SSH), 2):
        view = await wish(world, firewall, created=True, generation=generation)
        assert view.record is not None
        assert (view.record.network_digest, view.record.applied_generation) == (network_digest(firewall), generation)
        assert (view.observed.process, view.observed.network) == (process, True)
        assert bool(await rules(world)) == firewall.enabled
    assert await rules(world) == before


async def test_a_stopped_vm_takes_it_and_a_worker_that_begins_anew_keeps_it(world: HostWorld) -> None:
    """N-5, N-8: also of a VM that sleeps; and after the host's reboot."""
    await wish(world, OPEN, power_state=PowerState.STOPPED)
    await wish(world, SSH, created=True, generation=2, power_state=PowerState.STOPPED)
    before = await rules(world)
    assert before
    await world.restart()
    await world.host.watch.look("vm1")
    assert await rules(world) == before
    names, network = world.names, world.host.parts.network
    await network.release("vm1", tap=names.tap("vm1"), mac=names.mac("vm1"), address=None, guard=lambda: None)
    assert not await rules(world)
    await world.host.watch.look("vm1")
    assert await rules(world) == before


async def test_what_is_not_wanted_any_more_is_not_taken(world: HostWorld) -> None:
    """N-5, L-G2: an order whose rules the row does not want any more changes nothing; nor does one cut off halfway."""
    await wish(world, SSH)
    before = await rules(world)
    world.add("vm1", firewall=CLOSED)
    with pytest.raises(Superseded):
        await world.run_pass(make_row("vm1", created=True, generation=2, network_digest="f" * 64))
    assert await rules(world) == before


async def test_the_record_stays_what_was_handed_out(world: HostWorld) -> None:
    """N-5, S-5: whole, with its signature; what waits for a step of its own is not taken with the rules."""
    await wish(world, OPEN)
    records = world.host.parts.records
    world.add("vm1", firewall=SSH, signature="newer")
    await world.run_pass(make_row("vm1", created=True, generation=2, network_digest=network_digest(SSH)))
    assert records.config("vm1").input == world.inputs["vm1"]
    other = "e" * 64
    world.add("vm1", firewall=CLOSED, digest=other, memory_mib=1 << 40)
    row = make_row("vm1", created=True, generation=3, network_digest=network_digest(CLOSED), input_digest=other)
    view = await world.run_pass(row)
    assert view.record is not None
    assert view.record.refused is not None
    given = records.config("vm1").input
    assert (given.firewall, given.memory_mib, given.digest != other) == (CLOSED, 256, True)


async def test_a_kernel_that_refuses_leaves_the_wish_open(world: HostWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-5, L-G2: what the record calls set, the kernel has."""
    await wish(world, SSH)

    async def refuses(*_: Any, **__: Any) -> None:
        raise Unavailable("made to fail")

    with monkeypatch.context() as broken:
        broken.setattr(world.host.parts.network, "ensure", refuses)
        with pytest.raises(Unavailable):
            await wish(world, CLOSED, created=True, generation=2)
    assert world.host.parts.records.status("vm1").record.network_digest == network_digest(SSH)
    view = await wish(world, CLOSED, created=True, generation=2)
    assert view.record is not None
    assert view.record.network_digest == network_digest(CLOSED)
    assert not any('"tcp"' in line for line in await rules(world))

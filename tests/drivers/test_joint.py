"""A host's own namespace, joined to the machine by one link; the machine is a namespace of the test's own here."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Coroutine, Iterator
from ipaddress import IPv4Network
from typing import Any

import pytest

from drivers.network.joint import INSIDE, Joint, ensure_joint, remove_joint
from drivers.network.namespace import prefix, run_inside
from tests.fixtures.namespaces import remove_namespace

PORT, OTHER_PORT = 8460, 8461


@pytest.fixture
def joint(netns: str) -> Iterator[Joint]:
    name = f"{netns}h"
    run_inside(netns, lambda: subprocess.run(["ip", "link", "set", "lo", "up"], check=True))
    yield Joint(netns=name, link="tst-h2", network=IPv4Network("169.254.90.4/30"), table="tst_h2", ports=(PORT,))
    remove_namespace(name)


def on_machine(netns: str, story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in the namespace that stands for the machine."""
    run_inside(netns, lambda: asyncio.run(story))


async def hear(netns: str | None, address: str, port: int) -> str | None:
    """Connect from inside a namespace; return what is said there, or None when nobody answers."""
    words = ("timeout", "2", "bash", "-c", f"cat < /dev/tcp/{address}/{port}")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*prefix(netns), *words, stdout=pipe, stderr=pipe)
    said, _ = await process.communicate()
    return said.decode() or None


async def greet(address: str, port: int) -> asyncio.Server:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")
        writer.close()

    return await asyncio.start_server(answer, address, port)


def test_a_host_reaches_the_named_ports_and_nothing_else_of_the_machine(netns: str, joint: Joint) -> None:
    """S-2: what listens on loopback is reached by the link; what else the machine offers is closed to the host."""

    async def story() -> None:
        await ensure_joint(joint)
        await ensure_joint(joint)
        async with await greet("127.0.0.1", PORT), await greet("0.0.0.0", OTHER_PORT):  # noqa: S104 - a test's own
            assert await hear(joint.netns, "127.0.0.1", PORT) == "here"
            assert await hear(joint.netns, "127.0.0.1", OTHER_PORT) is None
            assert await hear(joint.netns, str(joint.machine), OTHER_PORT) is None
            run_inside(joint.netns, lambda: subprocess.run(["ip", "link", "set", INSIDE, "down"], check=True))
            assert await hear(joint.netns, "127.0.0.1", PORT) is None
            await ensure_joint(joint)
            assert await hear(joint.netns, "127.0.0.1", PORT) == "here"

    on_machine(netns, story())


def test_ports_that_changed_are_taken_over(netns: str, joint: Joint) -> None:
    """A later `hostler up` may choose other ports: the old ones are closed then."""

    async def story() -> None:
        await ensure_joint(joint)
        moved = Joint(joint.netns, joint.link, joint.network, joint.table, (OTHER_PORT,))
        await ensure_joint(moved)
        async with await greet("127.0.0.1", PORT), await greet("127.0.0.1", OTHER_PORT):
            assert await hear(joint.netns, "127.0.0.1", PORT) is None
            assert await hear(joint.netns, "127.0.0.1", OTHER_PORT) == "here"

    on_machine(netns, story())


def test_a_joint_that_is_removed_leaves_nothing(netns: str, joint: Joint) -> None:
    """`down --vms` takes namespaces away; what is absent is as good."""

    async def story() -> None:
        await remove_joint(joint)
        await ensure_joint(joint)
        await remove_joint(joint)
        await remove_joint(joint)

    on_machine(netns, story())
    shown = [*prefix(netns), "sh", "-c", "ip -br link; nft list ruleset; ip netns list"]
    left = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    assert joint.link not in left
    assert joint.table not in left
    assert joint.netns not in left.split()

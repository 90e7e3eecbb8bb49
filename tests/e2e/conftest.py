"""One installation for all end-to-end tests; each leaves it as it found it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.installation import Installation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is end to end is slow, and needs root for bridges and users."""
    for item in items:
        if "tests/e2e/" in str(item.path):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(300))
            if os.geteuid() != 0:
                item.add_marker(pytest.mark.skip(reason="a host's bridge, taps and users need root"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep what a failed test leaves to be read, before its fixtures take it away."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for name in ("fleet", "installation", "small_host"):
            found = item.funcargs.get(name)
            made = getattr(found, "fleet", found)
            if isinstance(made, Installation):
                made.keep_evidence(item.name)
                break
    return report


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    """Bring one up with a local image server allowed, and take it away at the end."""
    made = Installation(None, "--set", 'HOSTLER_HOST_IMAGE_ALLOW=["127.0.0.0/8"]')
    try:
        made.up()
        yield made
    finally:
        made.remove()


@pytest.fixture
def fleet(installation: Installation, request: pytest.FixtureRequest) -> Iterator[Installation]:
    """The installation, with every VM that a test made deleted afterwards, and nothing left of it."""
    before = installation.inventory()
    yield installation
    known = set(before["rows"])
    items: list[dict[str, Any]] = installation.call("GET", "/v1/vms?limit=500")[1]["items"]
    mine = [row["id"] for row in items if row["name"] not in known]
    for vm_id in mine:
        installation.call("DELETE", f"/v1/vms/{vm_id}?now=true")
    for vm_id in mine:
        _until_gone(installation, vm_id)


def _until_gone(installation: Installation, vm_id: str) -> None:
    import time

    deadline = time.monotonic() + 90
    while installation.call("GET", f"/v1/vms/{vm_id}")[0] not in (404, 410):
        assert time.monotonic() < deadline, installation.call("GET", f"/v1/vms/{vm_id}")
        time.sleep(0.2)

"""Fixtures by what they give; each is in tests/fixtures under the name of the thing."""

from __future__ import annotations

import importlib.util
import signal

import pytest
from xdist.scheduler import LoadFileScheduling

pytest_plugins = [
    name
    for name in (
        "tests.fixtures.namespaces",
        "tests.fixtures.postgres",
        "tests.fixtures.temporal",
        "tests.fixtures.image_server",
        "tests.fixtures.guest",
        "tests.fixtures.place",
    )
    if importlib.util.find_spec(name)
]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what runs in its background with SIGINT ignored, and every child inherits that: no Ctrl-C to test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files whose tests may take longest, so that no process has one left when the others are done."""
    items.sort(key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0))


class Schedule(LoadFileScheduling):
    """One process for a file, and one for all files that share an installation."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/e2e" if nodeid.startswith("tests/e2e/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Schedule:
    return Schedule(config, log)

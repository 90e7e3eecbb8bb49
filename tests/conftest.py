"""Fixtures by what they give; each is in tests/fixtures under the name of the thing."""

from __future__ import annotations

import importlib.util
import signal

pytest_plugins = [
    name
    for name in (
        "tests.fixtures.namespaces",
        "tests.fixtures.postgres",
        "tests.fixtures.temporal",
        "tests.fixtures.image_server",
        "tests.fixtures.guest",
    )
    if importlib.util.find_spec(name)
]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what runs in its background with SIGINT ignored, and every child inherits that: no Ctrl-C to test.
    signal.signal(signal.SIGINT, signal.default_int_handler)

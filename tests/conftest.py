"""Fixtures by what they give; each is in tests/fixtures under the name of the thing."""

from __future__ import annotations

import importlib.util

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

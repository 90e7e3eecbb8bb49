"""Temporal's own page of a create reads as its story: each step by name, and nothing that a user wrote."""

from __future__ import annotations

import base64
import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.step import WORDS, StepKind
from tests.e2e.browser import browsing
from tests.e2e.installation import PROJECT, Installation
from tests.e2e.sources import remove

PICTURE = PROJECT / "docs" / "temporal-ui.png"
IN_THE_STORE = ("taking the row", WORDS[StepKind.TAKE_ATTEMPT], "writing what was found", "ending the pass")
"""The uses of the store between the steps: the event history tells them, the timeline shows their names only."""
DRAW = "HOSTLER_DRAW_PICTURES"
"""Set, it lets the test renew the picture in docs/."""

STEPS = (
    "looking at the host",
    *(
        WORDS[kind]
        for kind in (
            StepKind.PREPARE,
            StepKind.FETCH_IMAGE,
            StepKind.MAKE_DISK,
            StepKind.WRITE_SEED,
            StepKind.BOOT,
            StepKind.COMPLETE,
        )
    ),
)


def test_the_page_of_a_create_tells_its_steps_and_no_text_of_a_user(fleet: Installation):
    """S-8, L-G10: every step's summary is on the page; name, user-data, labels and keys are nowhere in the history."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium to read Temporal's UI with: infra/bootstrap.sh --with chromium")
    row = fleet.create(
        "canary-of-a-name",
        user_data="#cloud-config\n# canary-of-user-data\n{}\n",
        labels={"canary-of-a-key": "canary-of-a-label"},
        metadata={"canary-of-an-entry": "canary-of-metadata"},
    )
    row = fleet.ready(row["id"], 90)
    link = next(operation["link"] for operation in row["operations"] if operation["kind"] == "create")
    assert link.startswith(f"http://127.0.0.1:{fleet.ports['ui']}/namespaces/default/workflows/vm%2F{row['id']}/")
    secret = fleet.public_key.split()[1]
    with browsing(browser) as page:
        for view in ("history", "timeline"):
            text = page.open(link.replace("/history", f"/{view}"), STEPS[-1])
            for words in (*STEPS, *(IN_THE_STORE if view == "history" else ())):
                assert words in text, (view, words, text[:2000])
            assert "canary" not in page.evaluate("document.documentElement.outerHTML")
            assert secret not in text
        if os.environ.get(DRAW):
            PICTURE.write_bytes(page.draw())
            assert 20_000 < PICTURE.stat().st_size < 400 << 10
    told = " ".join(all_texts(read_history(fleet, row["id"], link)))
    assert "canary" not in told
    assert secret not in told
    remove(fleet, "canary-of-a-name")


def read_history(fleet: Installation, vm_id: str, link: str) -> Any:
    """Ask the UI's server for what it shows a page from: the whole history."""
    run_id = link.split("/")[-2]
    base = f"http://127.0.0.1:{fleet.ports['ui']}/api/v1/namespaces/default/workflows/vm%2F{vm_id}/history"
    with urllib.request.urlopen(f"{base}?execution.runId={run_id}", timeout=20) as answer:
        history = json.load(answer)
    assert len(history["history"]["events"]) > 20
    return history


def all_texts(value: Any) -> Iterator[str]:
    """Give every text of a document, with what is base64 in it opened."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from all_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from all_texts(each)
    elif isinstance(value, str):
        yield value
        try:
            yield base64.b64decode(value, validate=True).decode(errors="replace")
        except ValueError:
            return


def test_the_picture_in_the_documents_is_one(tmp_path: Path):
    """The picture that README shows is there, and small."""
    assert PICTURE.read_bytes().startswith(b"\x89PNG")
    assert PICTURE.stat().st_size < 400 << 10

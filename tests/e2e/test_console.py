"""A walk through the web console in a real browser, over real guests: each page's facts, alive; narrow, dark, quiet."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.e2e.browser import Page, browsing
from tests.e2e.installation import PROJECT, Installation
from tests.e2e.test_temporal_ui import DRAW

PICTURES = PROJECT / "docs"


@pytest.fixture
def page(fleet: Installation) -> Iterator[Page]:
    """A browser that has logged in with the token of the command line."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium to see the console with: infra/bootstrap.sh --with chromium")
    with browsing(browser) as page:
        assert "Token" in page.open(url(fleet), "Log in")
        token = (fleet.home / "token").read_text().strip()
        page.evaluate(f"document.querySelector('#token').value = {token!r}; document.querySelector('button').click()")
        until(page, "What is wrong", "VMs")
        yield page


def url(fleet: Installation, path: str = "/") -> str:
    return f"http://127.0.0.1:{fleet.ports['api']}{path}"


def until(page: Page, *words: str, seconds: float = 60) -> str:
    """Wait until the page that is open has one of the words, whoever brings them there; return its text."""
    deadline = time.monotonic() + seconds
    while True:
        text = str(page.evaluate("document.body ? document.body.innerText : ''"))
        if any(word in text for word in words):
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


def until_loaded(page: Page) -> None:
    deadline = time.monotonic() + 30
    while page.evaluate("document.readyState") != "complete":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def press(page: Page, words: str) -> None:
    """Press the last button with these words (a destructive one is behind a first)."""
    page.evaluate(
        f"[...document.querySelectorAll('summary')].filter(e => e.innerText === {words!r}).forEach(e => e.click());"
        f"[...document.querySelectorAll('button')].filter(e => e.innerText === {words!r}).at(-1).click()"
    )


def draw(page: Page, name: str) -> None:
    if os.environ.get(DRAW):
        (PICTURES / f"console-{name}.png").write_bytes(page.draw())


def test_a_walk_through_the_console(fleet: Installation, page: Page) -> None:
    """S-35, A-10, H-P7: fleet, VM, host, quarantine, audit: what they say is so, and changes as it does."""
    row = fleet.ready(fleet.create("web-1")["id"])
    shown = page.open(url(fleet), "web-1")
    assert all(word in shown for word in ("Fleet", "ready", row["host"]["name"], "memory", row["addresses"]["ip"]))
    draw(page, "fleet")

    shown = page.open(url(fleet, f"/console/vms/{row['id']}"), "Operations")
    assert "running, wanted running" in shown
    assert "create" in shown
    links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.href).join(' ')")
    assert row["operations"][0]["link"] in links
    draw(page, "vm")
    press(page, "Stop")
    until(page, "wanted stopped")
    until(page, "stopped, wanted stopped")  # the page follows by itself
    press(page, "Start")
    until(page, "running, wanted running")

    shown = page.open(url(fleet, f"/console/hosts/{row['host']['id']}"), "Hypervisors")
    assert "qemu" in shown
    assert "web-1" in shown
    draw(page, "host")

    page.open(url(fleet, f"/console/vms/{row['id']}"), "Operations")
    press(page, "Delete")
    until(page, "Deleted; destroyed in")
    assert "web-1" in page.open(url(fleet, "/console/quarantine"), "web-1")
    press(page, "Undelete")
    until(page, "running, wanted running")
    assert "vm.undelete" in page.open(url(fleet, "/console/audit"), "vm.undelete")


def test_it_is_used_by_keyboard_narrow_and_in_the_dark(fleet: Installation, page: Page) -> None:
    """S-35: nothing is wider than a telephone, focus is seen, both schemes are readable, and the console is quiet."""
    row = fleet.ready("demo")
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for path in ("/", f"/console/vms/{row['id']}", f"/console/hosts/{row['host']['id']}", "/console/audit"):
            page.open(url(fleet, path), "Log out")
            until_loaded(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert contrast(page) >= 4.5, (scheme, path)
    page.open(url(fleet), "Log out")
    until_loaded(page)
    draw(page, "narrow")
    page.evaluate("document.querySelector('nav a').focus()")
    assert page.evaluate("document.activeElement.matches(':focus')")
    assert page.evaluate("document.querySelectorAll('script:not([src]), style, [style], [onclick]').length") == 0


def contrast(page: Page) -> float:
    """Compute the contrast of the page's text with its ground (WCAG 2.2, 1.4.3)."""
    return page.evaluate(
        """(() => {
            const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(each => each / 255)
                .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
                .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
            const seen = getComputedStyle(document.body);
            const [a, b] = [light(seen.color), light(seen.backgroundColor)].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
        })()"""
    )

"""A headless Chromium, spoken to by its DevTools protocol over a pair of pipes: no port, no driver, no past."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)
_ANSWER_SECONDS = 60.0
_TEXT = """
document.body.innerText + ' ' + [...document.querySelectorAll('svg text')].map(each => each.textContent).join(' ')
"""


class Page:
    """One tab. The browser reads commands from one pipe and answers on another, each message ended by NUL."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._numbers = itertools.count(1)
        self._read = b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = None
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        size = {"width": 1400, "height": 1120}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if getattr(self, "_session", None) is not None:
            message["sessionId"] = self._session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            answer = self._hear(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _hear(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser ended"
            self._read += data
        line, _, self._read = self._read.partition(b"\0")
        return json.loads(line)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression on the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, url: str, awaited: str, seconds: float = 90) -> str:
        """Open an address; return the page's text once it holds `awaited`, or as it is at the end."""
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + seconds
        while True:
            text = " ".join(str(self.evaluate(f"document.body ? ({_TEXT}) : ''")).split())
            if awaited in text or time.monotonic() > deadline:
                return text
            time.sleep(0.2)

    def draw(self) -> bytes:
        """Return a picture of the page, as PNG."""
        time.sleep(1)  # what the page moves by itself has come to rest
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextlib.contextmanager
def browsing(program: str) -> Iterator[Page]:
    """Run a browser without a past, and end it."""
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # The browser takes descriptors 3 and 4; bash puts them there.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", script, "bash", program, *_FLAGS, f"--user-data-dir={folder}"]
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdin=null, stdout=null, stderr=null, start_new_session=True
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Page(commands, answers)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            os.close(commands)
            os.close(answers)

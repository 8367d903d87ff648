"""A browser that stays open: pages are waited for, looked at and asked questions, over its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.servers import require

SECONDS: Final = 60.0
"""A loaded machine may take this long to answer."""

_ENDS: Final = """
import fcntl, os, sys
held = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
os.dup2(held[0], 3)
os.dup2(held[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The pipe's ends are to be descriptors 3 and 4 of the browser."""


CONTRAST: Final = """
(() => {
  const light = (colour) => {
    const [red, green, blue] = colour.match(/[\\d.]+/g).map(Number).map((one) => {
      const share = one / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (one) => {
    const colour = getComputedStyle(one).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? behind(one.parentElement) : colour;
  };
  const texts = [...document.querySelectorAll("body *")].filter((one) =>
    [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
  return Math.min(...texts.map((one) => {
    const [low, high] = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
})()
"""
"""The least contrast of a text with what is behind it."""

UNNAMED: Final = """
[...document.querySelectorAll("svg:not([aria-hidden]), figure, section, nav, [role=region], a, summary")]
  .filter((one) => !["aria-label", "aria-labelledby"].some((name) => one.getAttribute(name)))
  .filter((one) => !one.textContent.trim())
  .length + [...document.querySelectorAll("table")].filter((one) => !one.querySelector("thead th[scope=col]")
    || [...one.querySelectorAll("tbody tr")].some((row) => !row.querySelector("th[scope=row]"))).length
"""
"""How many parts of the page a reader of screens could not name."""


class Page:
    """One tab of a headless Chromium."""

    def __init__(self, process: subprocess.Popen[bytes], to_browser: int, from_browser: int) -> None:
        self._process = process
        self._to = to_browser
        self._from = from_browser
        self._waiting = b""
        self._asked = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What pages wrote to the console, exceptions, and what the browser refused or missed."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and give its result."""
        answer = self._answer(method, params)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The screen from now on; up to 480 columns it is a phone's."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width <= 480,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def allow_scripts(self, allowed: bool) -> None:
        """Whether pages may run scripts from now on."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not allowed)

    def send_headers(self, headers: dict[str, str]) -> None:
        """Headers of every request from now on."""
        self.ask("Network.setExtraHTTPHeaders", headers=headers)

    def open(self, url: str) -> None:
        """Go there and wait until it is loaded."""
        self.ask("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript on the page, whose own policy does not bind it."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = SECONDS) -> None:
        """Wait until the expression is true on the page, which may be another one by then."""
        end = time.monotonic() + seconds
        asked = {"expression": expression, "returnByValue": True}
        while True:
            answer = self._answer("Runtime.evaluate", asked)  # an error where the page is not there yet
            if answer.get("result", {}).get("result", {}).get("value") is True:
                return
            assert time.monotonic() < end, f"{expression}: not in {seconds:g} seconds, but {answer}"
            time.sleep(0.02)

    def shoot(self, file: Path, *, whole: bool = True) -> None:
        """A picture of the page, or of what the screen shows of it."""
        picture = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(picture["data"]))

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._asked += 1
        message = {"id": self._asked, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._asked:
                return answer
            self._listen(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            more = os.read(self._from, 1 << 16)
            assert more, f"the browser ended with {self._process.poll()}"
            self._waiting += more
        message, _, self._waiting = self._waiting.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def _listen(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(one.get("value")) for one in params["args"]))
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())


@contextmanager
def page() -> Iterator[Page]:
    """A tab of a browser of its own."""
    program = require("chromium-headless-shell")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [
        *(sys.executable, "-c", _ENDS, str(theirs_in), str(theirs_out), program),
        *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"),
        "--remote-debugging-pipe",
    ]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(process, ours_out, ours_in)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            process.terminate()
            process.wait(timeout=SECONDS)

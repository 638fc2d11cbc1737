"""A Chromium without a window, driven over the pipe of its debugging protocol with the standard library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MOST_SECONDS: Final = 120  # for an answer, on a busy machine
_FLAGS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--remote-debugging-pipe", "--force-color-profile=srgb", "--hide-scrollbars",
)  # fmt: skip
# A browser reads calls from its descriptor 3 and writes answers to 4.
_ON_3_AND_4: Final = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """The path of a Chromium on this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. ``errors`` are exceptions and error messages of its page, ``requests`` what it asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The answer to one call of the protocol; events before it are taken note of."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, page: Path, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        """Load a file and wait until it is drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.run("new Promise(done => document.readyState === 'complete' ? done() : (window.onload = done))")
        self.wait()

    def wait(self) -> None:
        """Until what was asked to be drawn is."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """A key on the keyboard."""
        for kind in ("keyDown", "keyUp"):
            given = {"text": text} if kind == "keyDown" and text else {}
            codes = {"Enter": 13, "Tab": 9, "ArrowDown": 40}
            code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **code, **given)

    def picture(self, *, is_whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole, **(
            {"clip": self._whole()} if is_whole else {}))  # fmt: skip
        return base64.b64decode(answer["data"])

    def _whole(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            assert select.select([self._from], [], [], MOST_SECONDS)[0], "the browser does not answer"
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "the browser has ended"
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(event["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Browser]:
    """A browser that keeps all it writes in ``folder``, and ends with the block."""
    call_read, call_write = os.pipe()
    answer_read, answer_write = os.pipe()
    command = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_3_AND_4, str(call_read), str(answer_write), *command],
        pass_fds=(call_read, answer_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(call_read)
    os.close(answer_write)
    try:
        yield Browser(call_write, answer_read)
    finally:
        process.terminate()
        process.wait(MOST_SECONDS)
        os.close(call_write)
        os.close(answer_read)

"""A headless Chromium for tests, by WebDriver's plain HTTP: no package needed beyond Debian's chromium and driver."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


class Browser:
    """One session; `root` is its address at the driver."""

    def __init__(self, root: str):
        self.root = root

    def post(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command: str, **parameters) -> Any:
        return self.post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, page: Path) -> None:
        self.post("/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """The value of a JavaScript function body."""
        return self.post("/execute/sync", {"script": script, "args": []})

    def size(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def media(self, kind: str = "screen", scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", media=kind, features=features)

    def console(self) -> list[str]:
        """Errors and warnings since the last call."""
        return [entry["message"] for entry in self.post("/se/log", {"type": "browser"})]

    def screenshot(self, path: Path, whole: bool = False) -> None:
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.post("/print", {"background": True}))


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _session(root: str, profile: Path) -> str:
    options = {"binary": CHROMIUM, "args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "WARNING"}}
    body = {"capabilities": {"alwaysMatch": wanted}}
    for _ in range(100):
        try:
            return Browser(root).post("/session", body)["sessionId"]
        except urllib.error.HTTPError:
            raise
        except OSError:  # the driver is not listening yet
            time.sleep(0.1)
    raise TimeoutError("chromedriver does not answer")


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A session with a fresh profile; the driver and the browser end with it."""
    assert DRIVER and CHROMIUM
    port = _free_port()
    driver = subprocess.Popen([DRIVER, f"--port={port}", "--allowed-ips=127.0.0.1"], stdout=subprocess.DEVNULL)
    try:
        root = f"http://127.0.0.1:{port}"
        session = Browser(f"{root}/session/{_session(root, profile)}")
        try:
            yield session
        finally:
            request = urllib.request.Request(session.root, method="DELETE")
            urllib.request.urlopen(request, timeout=30).close()
    finally:
        driver.terminate()
        driver.wait(timeout=30)

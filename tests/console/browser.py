"""Chromium through chromedriver: as much of WebDriver as the console's tests need, over the standard library.

Sources: https://www.w3.org/TR/webdriver2/ (requests), https://chromedevtools.github.io/devtools-protocol (cdp).
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

ASK_S: Final = 60.0
WAIT_S: Final = 15.0
TURN_S: Final = 0.05
OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--ignore-certificate-errors",
    "--force-device-scale-factor=1",
)
MISSING: Final = "Chromium's driver is not installed. Run: apt-get install -y --no-install-recommends chromium-driver"


class BrowserFailed(Exception):
    """What the driver said, or what did not become true."""


class Browser:
    """One window. Close it."""

    def __init__(self) -> None:
        driver = shutil.which("chromedriver")
        if driver is None:
            raise BrowserFailed(MISSING)
        self._driver = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._base = f"http://127.0.0.1:{self._port()}"
        wanted = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"}}
        wanted["goog:chromeOptions"] = {"args": list(OPTIONS)}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{session['sessionId']}"

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found is not None:
                return int(found[1])
        raise BrowserFailed("chromedriver ended before it listened")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, method=method, data=data)
        try:
            with urllib.request.urlopen(request, timeout=ASK_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                told = json.load(error)["value"]["message"]
            raise BrowserFailed(told.partition("\n")[0]) from error

    def close(self) -> None:
        """End the window and the driver."""
        try:
            self._ask("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait()
            if self._driver.stdout is not None:
                self._driver.stdout.close()

    def cdp(self, command: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, *, width: int, dark: bool = False) -> None:
        """Be as wide as a phone (390) or a desk (1280), and light or dark."""
        height = 844 if width < 500 else 900
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Go to an address."""
        self._ask("POST", f"{self._session}/url", {"url": url})

    def js(self, body: str, *arguments: Any) -> Any:
        """Run the body of a function; returns what it returns."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": body, "args": list(arguments)})

    def js_later(self, body: str) -> Any:
        """Run the body of a function whose last argument is to be called with the result."""
        return self._ask("POST", f"{self._session}/execute/async", {"script": body, "args": []})

    def until(self, condition: str, within_s: float = WAIT_S) -> float:
        """Wait until an expression is true; returns how long it took. Raises BrowserFailed."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < within_s:
            if self.js(f"return Boolean({condition})"):
                return time.monotonic() - began_s
            time.sleep(TURN_S)
        shown = self.js("return document.body.innerText")
        raise BrowserFailed(f"never within {within_s} s: {condition}\n{shown[:2_000]}")

    def click(self, text: str, within: str = "body") -> None:
        """Click the button or link that says this, as a person would: where it can be seen."""
        found = (
            f"[...document.querySelectorAll({json.dumps(within)} + ' :is(a, button, summary)')]"
            f".find((one) => one.textContent.trim() === {json.dumps(text)} && one.checkVisibility())"
        )
        self.until(f"({found}) && !({found}).disabled")
        element = self.js(f"return {found}")
        self._ask("POST", f"{self._session}/element/{next(iter(element.values()))}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into a field that is empty."""
        self.until(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
        element = self.js("return document.querySelector(arguments[0])", selector)
        self._ask("POST", f"{self._session}/element/{next(iter(element.values()))}/value", {"text": text})

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select."""
        self.js(
            "const one = document.querySelector(arguments[0]); one.value = arguments[1];"
            "one.dispatchEvent(new Event('change', {bubbles: true}))",
            selector,
            value,
        )

    def keys(self, *keys: str) -> None:
        """Press keys one after the other: "Tab", "Enter", "Escape"."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
                self.cdp(
                    "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text
                )

    def text(self) -> str:
        """Return what can be read."""
        shown: str = self.js("return document.body.innerText")
        return shown

    def complaints(self) -> list[str]:
        """Return what the console of the browser has since the last time: errors, warnings, breaches of the policy."""
        rows = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [row["message"] for row in rows if row["level"] in ("SEVERE", "WARNING")]

    def shoot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        width, height = self.js("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

"""Chromium without a window, driven over its DevTools pipe: JSON objects with a NUL after each, on its descriptors 3 and 4."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

TIMEOUT_S = 240
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe", "about:blank"]


def program():
    return shutil.which("chromium")


class Browser:
    def __init__(self, *flags):
        self.folder = tempfile.TemporaryDirectory()
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(["bash", "-c", command, program(), f"--user-data-dir={self.folder.name}", *flags, *FLAGS],
                                        pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.session, self.errors = 0, b"", None, []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait(timeout=TIMEOUT_S)
        os.close(self.out)
        os.close(self.inp)
        shutil.rmtree(self.folder.name, ignore_errors=True)  # its helpers may still write
        self.folder.cleanup()

    def call(self, method, **parameters):
        """Returns the result of a DevTools method; notes the errors that the page reports meanwhile."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.inp], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.inp, 1 << 16) if ready else b""
            if not data:
                raise AssertionError("the browser does not answer")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        event = json.loads(message)
        said = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(said["exceptionDetails"].get("exception", said["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"])
        elif event.get("method") == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
            self.errors.append(said["args"])
        return event

    def open(self, url):
        self.call("Page.navigate", url=url)

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression):
        """Waits until the expression is true in the page."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = self.value(expression)
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {expression}\n{self.value('document.body.innerText')}\n{self.errors}")
            time.sleep(0.1)

    def resize(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def press(self, key):
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def spoken(self):
        """Returns (role, name) of all that a screen reader meets."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

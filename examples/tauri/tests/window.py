#!/usr/bin/env python3
"""Drives the example's window as a user does: opens the small model and the sample notes, asks, and reads the answer and its sources.

Usage: tests/window.py PROGRAM [SCREENSHOT]   (needs a display, or xvfb-run, and WebKitWebDriver: on Debian, webkit2gtk-driver)
"""

import base64
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
QUESTION = "Which company takes care of the roof repair?"
# The name of an element's reference in the WebDriver protocol.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Window:
    def __init__(self, driver, program):
        self.address = driver
        options = {"webkitgtk:browserOptions": {"binary": program, "args": []}}
        self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": options}})["sessionId"]

    def call(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.address + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from error

    def of(self, method, path, body=None):
        return self.call(method, f"/session/{self.session}{path}", body)

    def find(self, selector):
        return self.of("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def type(self, selector, text):
        self.of("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def click(self, selector):
        self.of("POST", f"/element/{self.find(selector)}/click", {})

    def run(self, script):
        return self.of("POST", "/execute/sync", {"script": script, "args": []})

    def wait(self, script):
        end = time.monotonic() + 60
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"{script}\n{self.run('return document.body.innerText')}"
            time.sleep(0.1)
        return value


def main(program, screenshot=None):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "XDG_DATA_HOME": home, "TAURI_WEBVIEW_AUTOMATION": "true"}
        window = None
        driver = subprocess.Popen(["WebKitWebDriver", f"--port={port}"], env=environment)
        try:
            while driver.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.1)
            window = Window(f"http://127.0.0.1:{port}", program)
            # What cannot be opened is named.
            window.type("[name=model]", "no-such-model.gguf")
            window.type("[name=notes]", str(ROOT / "fixtures/notes"))
            window.click("#open button")
            assert "no-such-model.gguf" in window.wait("return document.getElementById('answer').textContent")
            window.run("document.querySelector('[name=model]').value = ''")
            window.type("[name=model]", str(ROOT / "fixtures/target.gguf"))
            window.click("#open button")
            window.wait("return document.body.ariaBusy === 'false' && document.getElementById('answer').textContent === ''")
            # A question that the notes do not cover.
            window.type("[name=question]", "Who invented gunpowder?")
            window.click("#ask button")
            told = window.wait("return document.body.ariaBusy === 'false' && document.getElementById('answer').textContent")
            assert "not in your notes" in told.lower(), told
            window.run("document.querySelector('[name=question]').value = ''")
            window.type("[name=question]", QUESTION)
            window.click("#ask button")
            source = window.wait("return document.querySelector('#sources li')?.textContent")
            answer = window.run("return document.getElementById('answer').textContent")
            # (What the small model makes of the passage is its own.)
            assert answer.strip() and "repair-roof.md" in source, (answer, source)
            if screenshot:
                pathlib.Path(screenshot).write_bytes(base64.b64decode(window.of("GET", "/screenshot")))
            print(f"{answer.strip()}\n{source}")
        finally:
            if window:
                window.call("DELETE", f"/session/{window.session}")
            driver.terminate()
            driver.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

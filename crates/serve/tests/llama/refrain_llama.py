"""A plug-in for pytest with which llama.cpp's server tests, unchanged, run against `refrain serve`.

It starts `refrain serve` in place of llama-server, with the model inside the program. Tests of what other programs do (routers, tools of the server,
images, adapters, saved slots, other chat templates, …) are skipped by the option that they give their server. The words of llama.cpp's own test
model cannot be expected of another model: such a comparison is noted, and the test goes on.
"""

import collections
import os
import subprocess
import time

import pytest
import utils

# Options without an equivalent here: a test that gives them is about a feature that Refrain does not have.
OTHER = (
    "models_dir models_preset lora_files chat_template chat_template_file mmproj_url media_path sleep_idle_seconds slot_save_path "
    "server_tools server_tools_runtime mcp_servers_config mcp_servers_json gcp_compat ui_mcp_proxy enable_ctx_shift spec_type model_draft "
    "log_path pooling model_tags no_ui cors_origins backend_sampling reasoning_format debug n_ga"
).split()
words = []


def start(self, timeout_seconds=60):
    given = [name for name in OTHER if getattr(self, name, None)]
    if self.model_alias not in (None, "tinyllama-2", "tinyllama-infill", "bert-bge-small", "jina-reranker", "llama-test-model"):
        given.append(f"model {self.model_alias}")
    if given:
        pytest.skip(f"no equivalent: {', '.join(given)}")
    env = {name: value for name, value in os.environ.items() if not name.startswith("REFRAIN_")}
    args = [os.environ["REFRAIN"], "serve", "--listen", f"127.0.0.1:{self.server_port}", "--store", "none"]
    args += ["--limits", f"running={self.n_slots or 1}", "--ctx", str((self.n_ctx or 4096) // (self.n_slots or 1))]
    args += ["--embedding-model", "fixture"] if self.server_embeddings or self.server_reranking else ["--name", self.model_alias or "fixture"]
    if self.api_key:
        env["REFRAIN_TOKEN"] = self.api_key
    self.process = subprocess.Popen(args, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    utils.server_instances.add(self)
    until = time.monotonic() + timeout_seconds
    while time.monotonic() < until:
        try:
            if self.make_request("GET", "/health").status_code == 200:
                return
        except Exception:
            pass
        if self.process.poll() is not None:
            raise RuntimeError(self.process.stderr.read().decode())
        time.sleep(0.01)
    raise TimeoutError


def match_regex(regex, text):
    """The words of another model. A text has to be there."""
    words.append(regex)
    return isinstance(text, str)


utils.ServerProcess.start = start
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.match_regex = match_regex
counts = collections.Counter()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    words.clear()
    yield
    if words:
        counts["with words of another model, not compared"] += 1


def pytest_terminal_summary(terminalreporter):
    for what, n in counts.items():
        terminalreporter.write_line(f"{n} {what}")

"""Shards on free ports, for tests of whole programs."""

import contextlib
import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import torch_required

SHARDS = 2
GRID_BLOCK = 4096  # of reproducible jobs


def metrics_of(session):
    """Returns the text of a session's /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{session.http_port}/metrics", timeout=60) as page:
        return page.read().decode()


@contextlib.contextmanager
def switch_of(jobs, workers):
    """Runs a switch for jobs of reproducible training, of these numbers. Yields its address and the file of their key."""
    with tempfile.TemporaryDirectory() as folder:
        key, file = Path(folder) / "job.key", Path(folder) / "jobs.json"
        key.touch(mode=0o600)
        key.write_text("0123456789abcdef" * 4 + "\n", encoding="ascii")
        file.write_text(json.dumps({"jobs": [{"name": f"job{job}", "job": job, "key_file": str(key), "workers": workers,
                                              "window_indices": GRID_BLOCK, "slots": 16} for job in jobs]}), encoding="utf-8")
        process = subprocess.Popen([torch_required.PROGRAMS / "millrace-switch", "run", "--listen", "127.0.0.1:0", "--jobs", file, "--json"],
                                   stdout=subprocess.PIPE, text=True)
        try:
            yield json.loads(process.stdout.readline())["addresses"][0], str(key)
        finally:
            process.terminate()
            process.communicate(timeout=240)


class Shards:
    """Runs shards; `servers` has their addresses as one text."""

    def __init__(self, count=SHARDS):
        self._folder = tempfile.TemporaryDirectory()
        self._processes = []
        for shard in range(count):
            command = [torch_required.PROGRAMS / "millrace-server", "--shard", shard, "--shards", count, "--listen", "127.0.0.1:0",
                       "--table", Path(self._folder.name) / "table.db", "--drain", "0s", "--json"]
            self._processes.append(subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                                    text=True))
        self.servers = ",".join(json.loads(process.stdout.readline())["address"] for process in self._processes)

    def stop(self):
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(timeout=240)
            process.stdout.close()
        self._folder.cleanup()

"""Shards on free ports, for tests of whole programs."""

import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import torch_required

SHARDS = 2


def metrics_of(session):
    """Returns the text of a session's /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{session.http_port}/metrics", timeout=60) as page:
        return page.read().decode()


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

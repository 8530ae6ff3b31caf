"""Two shards on free ports, for tests of whole programs."""

import json
import signal
import subprocess

import torch_required


class Shards:
    """Runs `millrace serve`; `servers` has the addresses as one text."""

    def __init__(self):
        command = [str(torch_required.PROGRAMS / "millrace"), "serve", "--shards", "2", "--listen", "127.0.0.1:0", "--http",
                   "127.0.0.1:0", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        servers = json.loads(self.process.stdout.readline())["servers"]
        self.servers = servers if isinstance(servers, str) else ",".join(servers)

    def stop(self):
        """Ends the shards and returns their exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        return self.process.wait(timeout=60)

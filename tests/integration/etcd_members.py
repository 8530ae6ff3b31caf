"""A cluster of real etcd members for tests: on ports of their own, with data in a folder of the test."""

import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

from reserved_ports import ReservedPorts

WAIT_S = 120  # no event of a healthy cluster takes this long


def is_here():
    return shutil.which("etcd") is not None


class Members:
    """Some members, by number. Their processes end with end().

    hosts, enter: of each member its address, and the command that runs a program there, as in a network namespace.
    """

    def __init__(self, folder, count, client_flags=(), scheme="http", hosts=None, enter=None):
        self.folder, self.client_flags, self.scheme = Path(folder), list(client_flags), scheme
        self.hosts, self.enter = hosts or ["127.0.0.1"] * count, enter or [[]] * count
        self.ports = ReservedPorts(2 * count)
        self.client_ports, self.peer_ports = self.ports.numbers[:count], self.ports.numbers[count:]
        self.processes = [None] * count
        for member in range(count):
            self.start(member)

    def table(self, prefix="", first=0):
        """Returns the value of --table. A process asks member `first` until it does not answer."""
        at = [f"{host}:{port}" for host, port in zip(self.hosts, self.client_ports)]
        return "etcd://" + ",".join(at[first:] + at[:first]) + prefix

    def start(self, member):
        client = f"{self.scheme}://{self.hosts[member]}:{self.client_ports[member]}"
        peers = [f"http://{host}:{port}" for host, port in zip(self.hosts, self.peer_ports)]
        with open(self.folder / f"etcd-{member}.log", "a", encoding="utf-8") as log:
            self.processes[member] = subprocess.Popen(
                [*self.enter[member], "etcd", "--name", f"m{member}", "--data-dir", str(self.folder / f"etcd-{member}"), "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peers[member], "--initial-advertise-peer-urls", peers[member],
                 "--initial-cluster", ",".join(f"m{number}={peer}" for number, peer in enumerate(peers)), "--logger", "zap",
                 "--log-level", "error", *self.client_flags], stdout=log, stderr=log)

    def ask(self, member, path, body=None):
        """The answer of a member's JSON gateway; None: it does not answer."""
        url = f"http://{self.hosts[member]}:{self.client_ports[member]}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body or {}).encode()), timeout=2) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError):
            return None

    def leader(self, besides=None):
        """Waits for a leader that answers, other than member `besides`, and returns its number."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for member, process in enumerate(self.processes):
                said = self.ask(member, "/v3/maintenance/status") if process and member != besides else None
                if said and said.get("leader", "0") == said["header"]["member_id"]:
                    return member
            time.sleep(0.05)
        raise AssertionError("etcd has no leader")

    def agree(self):
        """Returns whether all members have one leader."""
        said = [self.ask(member, "/v3/maintenance/status") for member in range(len(self.processes))]
        leaders = {one.get("leader", "0") if one else "0" for one in said}
        return len(leaders) == 1 and leaders != {"0"}

    def keys(self, prefix):
        """Returns the number of keys that begin with `prefix`, by member 0."""
        first, end = prefix.encode(), prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1])
        said = self.ask(0, "/v3/kv/range", {"key": b64encode(first).decode(), "range_end": b64encode(end).decode(), "count_only": True})
        return int(said.get("count", 0))

    def kill(self, member):
        self.processes[member].kill()
        self.processes[member].wait()
        self.processes[member] = None

    def stop(self, member):
        self.processes[member].send_signal(signal.SIGSTOP)

    def go_on(self, member):
        self.processes[member].send_signal(signal.SIGCONT)

    def end(self):
        for member, process in enumerate(self.processes):
            if process:
                self.kill(member)
        self.ports.close()

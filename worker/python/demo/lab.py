"""Hosts of the demo: network namespaces behind links of a rate, or this machine's loopback."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NETLAB = ROOT / "deploy/netlab.sh"


class Namespaces:
    """Is a lab of deploy/netlab.sh that is up. Hosts have numbers from 1."""

    interface = "eth0"

    def __init__(self, prefix):
        self._prefix = prefix

    def command(self, host, words):
        """Returns the words of a command that runs on the host."""
        return [str(NETLAB), "exec", self._prefix, str(host), "--", *words]

    def address(self, host):
        return f"10.77.0.{host}"

    def bytes_sent(self, hosts):
        """Returns the bytes that hosts 1 to `hosts` have sent through their links, counted at the bridge's ends."""
        counters = [f"/sys/class/net/{self._prefix}-{host}/statistics/rx_bytes" for host in range(1, hosts + 1)]
        done = subprocess.run(["ip", "netns", "exec", f"{self._prefix}-switch", "cat", *counters], capture_output=True, text=True, check=True)
        return sum(map(int, done.stdout.split()))


class Loopback:
    """Is one host. Its link has no limit, and its counter counts all programs of the machine."""

    interface = "lo"

    def command(self, host, words):
        return list(words)

    def address(self, host):
        return "127.0.0.1"

    def bytes_sent(self, hosts):
        return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text(encoding="ascii"))


def lacking():
    """Returns the sentence that says why this machine cannot make network namespaces, or an empty text."""
    done = subprocess.run([NETLAB, "check"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"deploy/netlab.sh check ended with {done.returncode}"]
    return lines[-1]


def enter_lab(hosts, rate, program, arguments):
    """Replaces this process by `program` inside a lab, which netlab.sh removes at its end. Does not return."""
    os.execv(NETLAB, [str(NETLAB), "run", str(hosts), rate, "--", *program, *arguments])


def present_lab():
    """Returns the lab that this process was started in, or the loopback."""
    prefix = os.environ.get("NETLAB_PREFIX")
    return Namespaces(prefix) if prefix else Loopback()

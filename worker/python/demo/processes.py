"""Processes of one training run: two shards, and one rank on each of the other hosts."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from lab import ROOT

EXAMPLE = ROOT / "worker/python/examples/char_transformer.py"
STOP_S = 15
POLL_S = 0.2
LINES_OF_LOG = 15
SKIPPED = 77  # exit code of a rank whose run this machine cannot make


class Failed(Exception):
    """A process ended with an error.

    code  its exit code.
    """

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


def free_port(address):
    """Returns a port that is free on the loopback; in a namespace every port is."""
    with socket.socket() as listener:
        listener.bind((address if address.startswith("127.") else "127.0.0.1", 0))
        return listener.getsockname()[1]


def torchrun_environment(ranks, rank, address, port):
    """Returns what torchrun tells a rank that is alone on its host.

    Debian 13's torchrun cannot start at all: it asks for a store with libuv, which Debian's torch lacks.
    """
    return {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_ADDR": address, "MASTER_PORT": str(port),
            "USE_LIBUV": "0"}


class Processes:
    """Starts processes on the hosts of a lab, and ends all of them at the end of a `with` block.

    Each is in a session of its own, so that Ctrl-C reaches this program alone. It ends when this program dies.
    """

    def __init__(self, lab, folder, programs, package):
        self._lab, self._folder, self._programs, self._package = lab, folder, programs, package
        self._processes = []  # (name, process, log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, name, host, words, environment=None, stdout=None):
        """Starts a command on a host. Its errors, and its output where `stdout` is None, go to FOLDER/NAME.log."""
        log = self._folder / f"{name}.log"
        command = ["setpriv", "--pdeathsig", "TERM", *self._lab.command(host, [str(word) for word in words])]
        with open(log, "wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout or file, stderr=file, text=True,
                                       start_new_session=True, env={**os.environ, **(environment or {})})
        self._processes.append((name, process, log))
        return process

    def pids(self):
        """Returns the process numbers of all that were started; a command keeps its number on a host."""
        return [process.pid for _, process, _ in self._processes]

    def start_shards(self, hosts):
        """Starts a shard on each of the hosts. Returns their addresses."""
        addresses = []
        for shard, host in enumerate(hosts):
            words = [self._programs / "millrace-server", "--shard", shard, "--shards", len(hosts), "--listen",
                     f"{self._lab.address(host)}:0", "--table", self._folder / "table.db", "--drain", "0s", "--insecure", "--json"]
            line = self.start(f"shard{shard}", host, words, stdout=subprocess.PIPE).stdout.readline()
            if not line:
                raise Failed(f"shard {shard} did not start:\n{self._end_of_logs()}")
            addresses.append(json.loads(line)["address"])
        return addresses

    def start_ranks(self, ranks, arguments, program=EXAMPLE):
        """Starts rank r on host r + 1. Returns the ranks' processes; rank 0's output is a pipe."""
        address = self._lab.address(1)
        port = free_port(address)
        threads = max(1, (os.cpu_count() or 1) // ranks)
        environment = {"PYTHONPATH": str(self._package), "GLOO_SOCKET_IFNAME": self._lab.interface,
                       "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        started = []
        for rank in range(ranks):
            started.append(self.start(f"rank{rank}", rank + 1, [sys.executable, program, *arguments],
                                      {**environment, **torchrun_environment(ranks, rank, address, port)},
                                      subprocess.PIPE if rank == 0 else None))
        return started

    def lines_of(self, ranks):
        """Yields the lines of rank 0 until all ranks have ended.

        Raises  Failed: a rank or a shard ended with an error.
        """
        lines = queue.SimpleQueue()

        def read():
            for line in ranks[0].stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, name="lines of rank 0", daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=POLL_S)
                if line is None:
                    break
                yield line
            except queue.Empty:
                self._check(ranks)
        while any(process.poll() is None for process in ranks):
            self._check(ranks)
            time.sleep(POLL_S)
        self._check(ranks)

    def stop(self):
        """Ends all processes: first by SIGTERM; those that stay by SIGKILL."""
        # Another Ctrl-C would leave processes behind.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for sent in (signal.SIGTERM, signal.SIGKILL):
                for _, process, _ in self._processes:
                    _signal_group(process, sent)
                if self._wait_for_all():
                    break
            for _, process, _ in self._processes:
                if process.stdout:
                    process.stdout.close()
            self._processes = []
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _wait_for_all(self):
        end = time.monotonic() + STOP_S
        for _, process, _ in self._processes:
            try:
                process.wait(timeout=max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True

    def _check(self, ranks):
        for name, process, log in self._processes:
            code = process.poll()
            if code is not None and (code != 0 or process not in ranks):
                raise Failed(f"{name} ended with code {code}:\n{self._end_of_logs(log)}", code)

    def _end_of_logs(self, *logs):
        parts = []
        for log in logs or [log for _, _, log in self._processes]:
            lines = Path(log).read_text(encoding="utf-8", errors="replace").splitlines()[-LINES_OF_LOG:]
            parts.append("\n".join([f"--- {log}", *lines]))
        return "\n".join(parts)


def _signal_group(process, sent):
    """Signals the process and those that it has started in its group."""
    try:
        os.killpg(process.pid, sent)
    except ProcessLookupError:
        pass

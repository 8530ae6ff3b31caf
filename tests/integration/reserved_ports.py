"""Ports for programs that cannot take a free one and report it, or whose port others must know before they start."""

import itertools
import os
import socket

# Below the ports that Linux takes for port 0 and for outgoing connections. So no other process takes one by chance, not
# even while the program that listens there is down.
FIRST, COUNT = {socket.SOCK_STREAM: 20_000, socket.SOCK_DGRAM: 26_000}, 6_000


class ReservedPorts:
    """Port numbers of the loopback that no other test takes before close()."""

    def __init__(self, count, kind=socket.SOCK_STREAM):
        # A socket of the other kind holds each number: it is in the way of other tests, and not of the program.
        self._holders = []
        other = socket.SOCK_DGRAM if kind == socket.SOCK_STREAM else socket.SOCK_STREAM
        for offset in itertools.count(os.getpid()):  # the next process begins at another one
            if len(self._holders) == count:
                break
            number = FIRST[kind] + offset % COUNT
            holder = socket.socket(socket.AF_INET, other)
            try:
                holder.bind(("127.0.0.1", number))
                with socket.socket(socket.AF_INET, kind) as probe:
                    probe.bind(("127.0.0.1", number))
            except OSError:
                holder.close()
                continue
            self._holders.append(holder)
        self.numbers = [holder.getsockname()[1] for holder in self._holders]

    def close(self):
        for holder in self._holders:
            holder.close()

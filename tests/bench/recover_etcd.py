#!/usr/bin/env python3
"""Runs `millrace-bench recover` on a table in etcd: one member of its own, on this machine.

    tests/bench/recover_etcd.py [flags of millrace-bench recover]

Takes millrace-bench from PATH, as measure.py sets it. Exit codes: the command's own; 77: etcd is not installed.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import etcd_members  # pylint: disable=wrong-import-position


def main():
    if not etcd_members.is_here():
        print("etcd is not installed (deploy/setup.sh --tests)", file=sys.stderr)
        return 77
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that etcd ends with it
    with tempfile.TemporaryDirectory(prefix="millrace-recover-") as folder:
        etcd = etcd_members.Members(folder, 1)
        try:
            etcd.leader()
            return subprocess.run(["millrace-bench", "recover", "--table", etcd.table("/recover"), *sys.argv[1:]], check=False).returncode
        finally:
            etcd.end()


if __name__ == "__main__":
    sys.exit(main())

"""Hosts of a test (deploy/netlab.sh): its script runs again on the last one, and its processes on the others."""

import os
import shutil
import subprocess
import sys
import unittest

from commands import NETLAB, PROGRAMS

PREFIX = os.environ.get("NETLAB_PREFIX", "")  # set on the hosts
SKIPPED = 77


def address(host):
    return f"10.77.0.{host}"


def on_host(host, *command):
    """Returns the command line that runs a command on a host, the first of which is 1."""
    return ["ip", "netns", "exec", f"{PREFIX}-{host}", *command]


def why_no_hosts(rules):
    """Returns why no host here can have these rules of nft, or None. rules: None if the hosts need no nft."""
    if rules is not None and not shutil.which("nft"):
        return "'nft' is missing: run deploy/setup.sh (package nftables)"
    able = subprocess.run([NETLAB, "check"], capture_output=True, text=True, check=False)
    if able.returncode:
        return able.stderr.strip()
    if rules is None:
        return None
    load = 'exec ip netns exec "$NETLAB_PREFIX-1" nft "$0"'
    able = subprocess.run([NETLAB, "run", "1", "none", "--", "bash", "-c", load, rules], capture_output=True, text=True, check=False)
    return f"the kernel cannot take the rules of nft: {able.stderr.strip()}" if able.returncode else None


def run_tests(script, hosts, rules, rate="none", arguments=()):
    """Runs the tests of a script on the last of `hosts` hosts, and ends.

    rules      of nft, which the tests need on a host; None: they need no nft.
    rate       of each host's link, as netlab.sh takes it.
    arguments  that the script took off the command line behind the folder of programs.
    """
    if PREFIX:
        unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
    reason = why_no_hosts(rules)
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    again = f'exec "$0" exec "$NETLAB_PREFIX" {hosts} -- "$@"'
    command = [NETLAB, "run", str(hosts), rate, "--", "bash", "-c", again, NETLAB, sys.executable, script, PROGRAMS, *arguments, *sys.argv[1:]]
    sys.exit(subprocess.run(command, check=False).returncode)

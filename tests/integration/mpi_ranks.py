"""Common parts of the tests of `millrace-peer` under mpirun: starts ranks, finds their processes, skips without MPI.

Takes the folder of the programs off the front of the command line.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path

NETLAB = str(Path(__file__).resolve().parents[2] / "deploy/netlab.sh")
PROGRAMS = Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin").resolve()
PROGRAM = str(PROGRAMS / "millrace-peer")
BENCH = str(PROGRAMS / "millrace-bench")
# Shared memory is `vader`: Open MPI 4 has no other, and Open MPI 5 takes that name for its `sm`.
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "btl", "self,vader"]
# A test that hangs ends after it. Ranks that share a busy machine with other tests take minutes.
RANKS_MAX_S = 300
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def command_of(arguments):
    """Returns the command line of `millrace-peer`; if the first argument is "peers", that of `millrace-bench`."""
    return [BENCH if arguments[0] == "peers" else PROGRAM, *arguments]


def start(ranks, arguments):
    return subprocess.Popen([*MPIRUN, "-n", str(ranks), *command_of(arguments)], env=ENVIRONMENT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(ranks, arguments, timeout=RANKS_MAX_S):
    with start(ranks, arguments) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def run_on_hosts(ranks, hosts, arguments):
    """Ranks in network namespaces, one after the other on each host; None where these cannot be made."""
    if subprocess.run([NETLAB, "check"], capture_output=True, check=False).returncode != 0:
        return None
    command = [NETLAB, "mpirun", "--ranks", str(ranks), "--hosts", str(hosts), "--link-rate", "1gbit", "--", *command_of(arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=RANKS_MAX_S, check=False)


def run_differing(first, second):
    """Rank 0 with the first arguments, ranks 1 and 2 with the second."""
    # A shell chooses: mpirun of Open MPI 5.0.7 ends with a segmentation fault where `:` separates programs.
    choice = f'[ "$OMPI_COMM_WORLD_RANK" != 0 ] || exec {shlex.join(command_of(first))}; exec {shlex.join(command_of(second))}'
    command = [*MPIRUN, "-n", "3", "sh", "-c", choice]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=RANKS_MAX_S, check=False)


def pids_of_ranks(mpirun, ranks):
    """The processes of these ranks, by rank, once all of them are there."""
    while mpirun.poll() is None:
        found = {}
        for process in Path("/proc").iterdir():
            try:
                if not process.name.isdigit() or int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) != mpirun.pid:
                    continue
                for word in (process / "environ").read_text().split("\0"):
                    if word.startswith("OMPI_COMM_WORLD_RANK="):
                        found[int(word.split("=")[1])] = int(process.name)
            except (OSError, IndexError):
                continue
        if all(rank in found for rank in ranks):
            return found
        time.sleep(0.05)
    raise AssertionError("mpirun has ended: " + mpirun.stderr.read())


def wait_for_start(mpirun):
    """Until `millrace-bench` reports its first work: a rank that stops inside MPI_Init holds up the others there."""
    while not (line := mpirun.stderr.readline()).startswith("millrace-bench peers: "):
        if not line:
            raise AssertionError(f"mpirun has ended with code {mpirun.wait()}")


def shares_memory(pid):
    """Whether the process is there and has bodies of messages in memory that others look into."""
    try:
        return "millrace-bodies" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def main():
    """Runs the caller's tests, or exits with 77 (skipped, for ctest)."""
    if shutil.which("mpirun") is None:
        print("skipped: there is no mpirun (deploy/setup.sh)")
        sys.exit(77)
    if "not in this build" in subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout:
        print("skipped: this build has no MPI")
        sys.exit(77)
    unittest.main()

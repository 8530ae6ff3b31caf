#!/usr/bin/env python3
"""Builds without DPDK, libipsec-mb, MPI and CUDA: CMake's treatment of the options that omit them, and the programs'
messages.

Takes the folder of the programs that were linked without them, the folder of the usual programs, and the source tree.
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BARE, USUAL, SOURCE = (Path(sys.argv.pop(1)).resolve() for _ in range(3))
TIMEOUT_S = 120
PARTS = ("DPDK", "IPSEC_MB", "MPI", "CUDA")


def run(*arguments):
    return subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def configure(folder, *flags):
    # nvcc's part takes half of the time of a configuration, and decides nothing here.
    return run("cmake", "-S", SOURCE, "-B", folder, "-G", "Ninja", "-DMILLRACE_BUILD_TESTS=OFF", "-DMILLRACE_CUDA=OFF", *flags)


class BarePrograms(unittest.TestCase):
    def test_TheSwitchReportsItsDpdkAndMacSupport(self):
        said = run(BARE / "millrace-switch", "--version")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("without DPDK, MACs by OpenSSL", said.stdout)

    def test_ADriverOfDpdkIsRefusedWithWhatToDo(self):
        with tempfile.TemporaryDirectory() as folder:
            jobs = Path(folder) / "jobs.json"
            jobs.write_text('{"jobs": []}', encoding="utf-8")
            said = run(BARE / "millrace-switch", "run", "--listen", "10.0.0.1:7700", "--jobs", jobs, "--pmd", "net_af_packet,iface=lo")
        self.assertEqual(said.returncode, 5, said.stderr)
        for words in ("without DPDK", "deploy/setup.sh", "--pmd kernel"):
            self.assertIn(words, said.stderr)
        self.assertEqual(said.stderr.count("\n"), 1, said.stderr)

    def test_TheBenchmarkOfDpdkIsRefusedAndThatOfMemoryRuns(self):
        said = run(BARE / "millrace-switch-bench", "traffic", "--pmd", "net_ring")
        self.assertEqual(said.returncode, 5, said.stderr)
        self.assertIn("--pmd memory", said.stderr)
        said = run(BARE / "millrace-switch-bench", "traffic", "--pmd", "memory", "--packets", "1000", "--repeats", "1", "--switch-slots", "8",
                   "--window-indices", "6400")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("every MAC verified", said.stdout)

    def test_PeersSayThatMpiIsMissing(self):
        said = run(BARE / "millrace-peer", "train", "--ranks", "4")
        self.assertEqual(said.returncode, 2, said.stderr)
        self.assertIn("no MPI", said.stderr)


class Options(unittest.TestCase):
    def test_OffLeavesEveryPartOut(self):
        with tempfile.TemporaryDirectory() as folder:
            said = configure(folder, *(f"-DMILLRACE_{part}=OFF" for part in PARTS))
            self.assertEqual(said.returncode, 0, said.stderr)
            for part in PARTS:
                self.assertIn(f"MILLRACE_{part} is OFF", said.stdout)
            rules = (Path(folder) / "build.ninja").read_text(encoding="utf-8")
        for source in ("dpdk_absent.cc", "session_mac_openssl.cc", "cmd_peers_without_mpi.cc", "cmd_train_without_mpi.cc",
                       "device_memory_missing.cc"):
            self.assertIn(source, rules)
        for name in ("rte_", "IPSec_MB", "libmpi", "dpdk_port.cc", "mpi_communicator.cc", "device_queue.cc", "cudart"):
            self.assertNotIn(name, rules)

    def test_OnWithoutThePartIsAnErrorThatNamesIt(self):
        with tempfile.TemporaryDirectory() as folder:
            # As if it were not installed.
            said = configure(folder, "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON", "-DMILLRACE_MPI=ON")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("MILLRACE_MPI is ON, and there is no MPI", " ".join(said.stderr.split()))

    def test_CudaWithoutItsCompilerIsAnErrorOrLeftOut(self):
        with tempfile.TemporaryDirectory() as folder:
            said = configure(folder, "-DMILLRACE_NVCC=/no/such/nvcc", "-DMILLRACE_CUDA=ON")
            self.assertNotEqual(said.returncode, 0)
            self.assertIn("MILLRACE_CUDA is ON, and there is no CUDA toolkit", " ".join(said.stderr.split()))
        with tempfile.TemporaryDirectory() as folder:
            said = configure(folder, "-DMILLRACE_NVCC=/no/such/nvcc", "-DMILLRACE_CUDA=AUTO")
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertRegex(said.stdout, "no CUDA toolkit.*kernels on CUDA devices are left out")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""deploy/slurm/train.sbatch on a Slurm of this machine: shards and workers by srun, a model at the end.

    slurm_test.py FOLDER_OF_PROGRAMS SOURCE_TREE [unittest arguments]

Starts munged, slurmctld and slurmd with a configuration of its own on free ports of loopback, and ends them. Skipped where
they are not installed (slurm-wlm, munge), or not root.
"""

import concurrent.futures
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAMS = Path(sys.argv.pop(1)).resolve()
SOURCE = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SOURCE / "tests/integration"))
sys.argv.insert(1, str(PROGRAMS))  # commands takes it off again
import etcd_members  # noqa: E402
from commands import made_up_rows  # noqa: E402
from reserved_ports import ReservedPorts  # noqa: E402

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
TIMEOUT_S = 240
missing = [one for one in NEEDED if shutil.which(one, path=os.environ["PATH"] + ":/usr/sbin") is None]
if missing or os.geteuid() != 0:
    print(f"slurm_test: skipped: {'not root' if not missing else 'there is no ' + missing[0]}")
    sys.exit(77)

WORKERS = 2
KEYS_OF_A_REMOVED_CLUSTER = 4  # format, identity, changes, last_job: one that is not removed has more
CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SrunPortRange={srun}-{srun_last}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_min_interval=100000
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="slurm")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = Path(cls.temporary.name)
        for name in ("state", "spool", "munge"):
            (cls.folder / name).mkdir(mode=0o700)
        key = cls.folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().split(".", 1)[0]
        ports = ReservedPorts(3)
        cls.addClassCleanup(ports.close)
        controller, daemon, srun = ports.numbers
        configuration = cls.folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(folder=cls.folder, host=host, controller=controller, daemon=daemon, srun=srun,
                                                      srun_last=srun + 200), encoding="utf-8")
        cls.environment = os.environ | {"SLURM_CONF": str(configuration), "PATH": f"{PROGRAMS}:{os.environ['PATH']}:/usr/sbin:/sbin"}
        cls.processes = []
        cls.addClassCleanup(cls.end_all)
        # --force: the folder belongs to root, and /tmp above it to all.
        cls.begin("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={cls.folder}/munge.socket",
                  f"--pid-file={cls.folder}/munge.pid", f"--log-file={cls.folder}/munge.log", f"--seed-file={cls.folder}/munge/seed")
        cls.until(lambda: (cls.folder / "munge.socket").exists(), "munged")
        cls.begin("slurmctld", "-D")
        cls.begin("slurmd", "-D", "-L", str(cls.folder / "slurmd.log"))
        cls.until(lambda: "idle" in cls.said("sinfo", "--noheader", "--format=%T"), "an idle node")

    @classmethod
    def begin(cls, *command):
        log = open(cls.folder / f"{command[0]}.out", "w", encoding="utf-8")
        cls.addClassCleanup(log.close)
        # In a folder of its own: a daemon leaves no file elsewhere.
        cls.processes.append(subprocess.Popen(command, env=cls.environment, cwd=cls.folder, stdout=log, stderr=subprocess.STDOUT))

    @classmethod
    def end_all(cls):
        for process in reversed(cls.processes):
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @classmethod
    def said(cls, *command):
        return subprocess.run(command, env=cls.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout

    @classmethod
    def until(cls, done, name):
        deadline = time.monotonic() + TIMEOUT_S
        while not done():
            ended = [process.args[0] for process in cls.processes if process.poll() is not None]
            logs = "\n".join(path.read_text(encoding="utf-8", errors="replace")[-2000:] for path in cls.folder.glob("*.out"))
            assert not ended, f"ended: {ended}\n{logs}"
            assert time.monotonic() < deadline, f"{name}: not after {TIMEOUT_S} s\n{logs}"
            time.sleep(0.2)

    def submit(self, *arguments, **environment):
        """Runs the batch script. Returns its exit code, its output, and the mode of each of its files."""
        with tempfile.TemporaryDirectory(dir=self.folder) as here:
            command = ["sbatch", "--wait", f"--ntasks={WORKERS}", f"--chdir={here}", f"--output={here}/log", SOURCE / "deploy/slurm/train.sbatch", *arguments]
            ended = subprocess.run(command, env=self.environment | {"MILLRACE_HOST": "127.0.0.1"} | environment, cwd=here, capture_output=True, text=True,
                                   timeout=TIMEOUT_S, check=False)
            log = Path(here) / "log"
            text = log.read_text(encoding="utf-8") if log.exists() else ""
            return ended.returncode, ended.stderr + text, {path.name: path.stat().st_mode & 0o777 for path in Path(here).glob("millrace-*/**/*")}

    def test_ShardsAndWorkersTrain(self):
        rows = self.folder / "rows.svm"
        rows.write_text(made_up_rows(400, 3), encoding="utf-8")
        model = self.folder / "model"
        code, text, files = self.submit("--train", rows, "--epochs", "2", "--batch", "50", "-o", model)
        self.assertEqual(code, 0, text)
        self.assertGreater(model.stat().st_size, 100)
        self.assertEqual({name for name in files if name.endswith(".json")}, {"shard.0.json", "shard.1.json"})
        self.assertEqual({name: mode for name, mode in files.items() if name.endswith((".key", ".pub"))},
                         {"cluster.key": 0o600, "cluster.pub": 0o644, "worker.key": 0o600, "worker.pub": 0o644})
        self.assertEqual(self.said("squeue", "--noheader"), "")

    @unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
    def test_JobsWithOneEtcdHaveClustersOfTheirOwn(self):
        """Two jobs at a time train with one MILLRACE_TABLE, with two numbers of shards. No shard of theirs stays in etcd."""
        etcd = etcd_members.Members(self.folder, 1)
        self.addCleanup(etcd.end)
        etcd.leader()
        rows = self.folder / "rows_of_two.svm"
        rows.write_text(made_up_rows(200, 3), encoding="utf-8")
        for table, prefix in ((etcd.table(), "/millrace-slurm/"), (etcd.table("/ours"), "/ours/")):
            with concurrent.futures.ThreadPoolExecutor() as both:
                jobs = [both.submit(self.submit, "--train", rows, "--epochs", "1", "--batch", "50", MILLRACE_TABLE=table, MILLRACE_SHARDS=shards)
                        for shards in ("1", "2")]
            for job in jobs:
                code, text, _ = job.result()
                self.assertEqual(code, 0, text)
                self.assertNotIn("stays in etcd", text)
            self.assertLessEqual(etcd.keys(prefix + "job-"), KEYS_OF_A_REMOVED_CLUSTER * len(jobs))

    def test_JobsWithOneFolderHaveFoldersOfTheirOwn(self):
        """Two jobs at a time train with one MILLRACE_FOLDER, with two numbers of shards."""
        rows, folder = self.folder / "rows_of_a_folder.svm", self.folder / "shared"
        rows.write_text(made_up_rows(200, 3), encoding="utf-8")
        with concurrent.futures.ThreadPoolExecutor() as both:
            jobs = [both.submit(self.submit, "--train", rows, "--epochs", "1", "--batch", "50", MILLRACE_FOLDER=str(folder), MILLRACE_SHARDS=shards)
                    for shards in ("1", "2")]
        for job in jobs:
            code, text, _ = job.result()
            self.assertEqual(code, 0, text)
        self.assertEqual(sorted(len(list(one.glob("shard.*.json"))) for one in folder.glob("millrace-*")), [1, 2])

    def test_HttpPortsAreOnLoopbackUnlessTheyHaveFlags(self):
        rows = self.folder / "rows_of_http.svm"
        rows.write_text(made_up_rows(100, 3), encoding="utf-8")
        for flags, host in (("", "127.0.0.1"), ("--http-insecure", "127.0.0.2")):
            folder = self.folder / f"http-{host}"
            code, text, _ = self.submit("--train", rows, "--epochs", "1", "--batch", "50", MILLRACE_FOLDER=str(folder), MILLRACE_HTTP_FLAGS=flags,
                                        MILLRACE_HOST="127.0.0.2")
            self.assertEqual(code, 0, text)
            lines = [json.loads(one.read_text(encoding="utf-8").splitlines()[0]) for one in folder.glob("millrace-*/shard.*.json")]
            self.assertEqual([line["http"].rsplit(":", 1)[0] for line in lines], [host] * 2)

    def test_ATableThatJobsWouldShareIsRefused(self):
        code, text, _ = self.submit("--train", "/dev/null", MILLRACE_TABLE=str(self.folder / "table.db"))
        self.assertEqual(code, 1, text)
        self.assertIn("MILLRACE_TABLE is etcd://", text)

    def test_TheCodeOfTheWorkersIsThatOfTheJob(self):
        code, text, _ = self.submit("--train", self.folder / "absent.svm")
        self.assertEqual(code, 6, text)

    def test_AShardThatDoesNotStartEndsTheJob(self):
        code, text, _ = self.submit("--train", "/dev/null", MILLRACE_SERVER_FLAGS="--no-such-flag")
        self.assertEqual(code, 1, text)
        self.assertIn("did not start", text)

    @unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
    def test_AShardThatDoesNotStartLeavesNoClusterInEtcd(self):
        """The shard has its number in the table, and ends before the script reads its start line."""
        folder = self.folder / "unstarted"
        folder.mkdir()
        etcd = etcd_members.Members(folder, 1)
        self.addCleanup(etcd.end)
        etcd.leader()
        server = folder / "millrace-server"
        server.write_text(f"""#!/bin/sh
"{PROGRAMS}/millrace-server" "$@" >"{folder}/line" &
until [ -s "{folder}/line" ]; do sleep 0.1; done
kill $!
wait $!
exit 1
""", encoding="utf-8")
        server.chmod(0o755)
        code, text, _ = self.submit("--train", "/dev/null", MILLRACE_TABLE=etcd.table("/unstarted"), MILLRACE_SHARDS="1",
                                    PATH=f"{folder}:{self.environment['PATH']}")
        self.assertEqual(code, 1, text)
        self.assertIn("did not start", text)
        self.assertNotIn("stays in etcd", text)
        self.assertLessEqual(etcd.keys("/unstarted/job-"), KEYS_OF_A_REMOVED_CLUSTER)


if __name__ == "__main__":
    unittest.main()

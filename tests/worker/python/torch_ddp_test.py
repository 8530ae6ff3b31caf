#!/usr/bin/env python3
"""DistributedDataParallel through Millrace's hook, two ranks: with real shards, or where they are not built over gloo.

    torch_ddp_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch_required  # first: skips where PyTorch is absent

import torch

import torch_ddp_cases
import torch_half_cases
import torch_path_cases
import torch_peer_cases
import torch_unused_cases
from torch_ddp_training import SKIPPED
from torch_shards import Shards

HERE = Path(__file__).parent
TIMEOUT_S = 600
INTERRUPTED_S = 120  # until a process that gets SIGINT has ended; far below the time limit of its wait


def python(script, *arguments, **environment):
    """Starts a Python program of this folder, or a text of one."""
    words = [str(HERE / script)] if script.endswith(".py") else ["-c", script]
    return subprocess.Popen([sys.executable, *words, str(torch_required.PROGRAMS), str(torch_required.PACKAGE), *map(str, arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "PYTHONPATH": str(HERE), **environment})


def run_cases(*servers):
    """Runs all cases with two ranks; servers: as torch_ddp_ranks.py has them.

    Returns ({case: [error of each rank]}, the text that each rank printed).
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = [python("torch_ddp_ranks.py", rank, 2, folder, *servers) for rank in range(2)]
        texts = []
        try:
            texts = [process.communicate(timeout=TIMEOUT_S)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        texts = [f"{text}rank {rank} ended with code {process.returncode}\n"
                 for rank, (text, process) in enumerate(zip(texts, ranks))]
        results = []
        for rank in range(2):
            path = Path(folder) / f"rank{rank}.json"
            results.append(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})
    return {case: [result[case] for result in results if case in result] for result in results for case in result}, texts


class Cases:
    """One test a case: all of them run in one pair of processes, before the first test."""

    results, texts = {}, []

    def check(self, case):
        errors = self.results.get(case.__name__)
        self.assertIsNotNone(errors, "the ranks ended before this case:\n" + "\n".join(self.texts))
        if all(error.startswith(SKIPPED) for error in errors):
            self.skipTest(errors[0].removeprefix(SKIPPED))
        self.assertEqual(errors, ["", ""], "\n".join(errors))


def add_tests(target, cases):
    for case in cases:
        words = "".join(word.capitalize() for word in case.__name__.split("_"))
        setattr(target, f"test_{words}", lambda self, case=case: self.check(case))


@unittest.skipIf(torch_required.BUILT, "real shards are there: the class OverShards has the same cases")
class OverGloo(Cases, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results, cls.texts = run_cases("fake")


@unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
class OverShards(Cases, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shards, cls.more_shards = Shards(), Shards(3)
        cls.results, cls.texts = run_cases(cls.shards.servers, cls.more_shards.servers)

    @classmethod
    def tearDownClass(cls):
        cls.shards.stop()
        cls.more_shards.stop()


@unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
class OverPeers(Cases, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results, cls.texts = run_cases("peers")


add_tests(OverGloo, torch_ddp_cases.ALL)
add_tests(OverShards, torch_ddp_cases.ALL + torch_ddp_cases.REAL + torch_path_cases.ALL + torch_half_cases.ALL + torch_unused_cases.ALL)

add_tests(OverPeers, torch_peer_cases.ALL + torch_half_cases.ALL + torch_unused_cases.ALL)

# Three lines, torchrun's environment, and no call of finish(). Rank 1 of "blocked" never pushes.
PROGRAM = """
import sys, time
import torch_required
import torch, torch.distributed as dist
import millrace
rank, kind, servers = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{sys.argv[4]}/{kind}", rank=rank, world_size=2)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
if servers == "peers":
    mill = millrace.State(path="peers", select="topk:0.01", allreduce="oktopk", timeout=None)
else:
    mill = millrace.State(servers, job=kind, select="topk:0.01", model=ddp, timeout=36_000.0 if kind == "blocked" else 600.0)
ddp.register_comm_hook(mill, millrace.hook)
for step in range(3):
    if kind == "killed" and step == 2:
        print("blocked", flush=True)
        if rank == 1:
            time.sleep(600)
    if kind == "blocked":
        print("blocked", flush=True)
        if rank == 1:
            time.sleep(600)
    ddp(torch.ones(1, 64)).sum().backward()
print("trained", flush=True)
"""

# A step that waits: of two ranks, where rank 1 takes none, or for values that the shards will never have ("pull").
STEP = """
import sys, time
import torch_required
import torch
from millrace.torch import Replica, StoreOptimizer
rank, kind, servers = int(sys.argv[1]), *sys.argv[2:]
model = torch.nn.Linear(64, 64)
if kind == "replica":
    trainer = Replica(model, servers, job=kind, worker=rank, workers=2, rate=0.1, timeout=None)
else:
    trainer = StoreOptimizer(model, servers, job=kind, store="sgd:0.1", rank=rank, world_size=1 if kind == "pull" else 2, timeout=None)
if kind == "pull":
    job = trainer._dense
    job.pull_into = lambda name, parameter, update: job.session.pull(name, parameter.view(-1), at_least_step=99, timeout=None)
model(torch.ones(1, 64)).sum().backward()
print("blocked", flush=True)
if rank == 1:
    time.sleep(600)
trainer.step()
"""

# Rank 0 of two; the other one never starts. "alone": torch's store is this process'. "nowhere": no process listens there.
MEETING = """
import os, sys, threading
import torch_required
import torch, torch.distributed as dist
import millrace
def tell_when_met():
    store.get("attempt0/millrace/peers/0/0")
    print("ready", flush=True)
kind, port = sys.argv[1], sys.argv[2]
if kind == "alone":
    without_libuv = {"use_libuv": False} if "use_libuv" in (dist.TCPStore.__init__.__doc__ or "") else {}
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, **without_libuv)
    port = str(store.port)
    threading.Thread(target=tell_when_met, daemon=True).start()
else:
    print("ready", flush=True)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
millrace.State(path="peers", rank=0, world_size=2, model=torch.nn.Linear(4, 4), timeout=None)
"""

# One rank gets SIGINT while C++ computes the gradient behind the first bucket.
COMPUTING = """
import os, signal, sys, threading, time
import torch_required
import torch, torch.distributed as dist
import millrace
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/computing", rank=0, world_size=1)
torch.set_num_threads(1)  # else many cores may end the pass before the signal
dist._DEFAULT_FIRST_BUCKET_BYTES = 64
model = torch.nn.Sequential(torch.nn.Linear(1200, 1200), torch.nn.Linear(1200, 10))
ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
mill = millrace.State(sys.argv[1], job="computing", select="topk:0.01", dense_below=0, model=ddp)
ddp.register_comm_hook(mill, millrace.hook)
inputs = torch.randn(12000, 1200)
for step in range(2):
    ddp(inputs).sum().backward()
loss = ddp(inputs).sum()
sent, send = threading.Event(), mill._exchange.send
mill._exchange.send = lambda bucket: (send(bucket), sent.set())[0]
def interrupt():
    sent.wait()
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    loss.backward()
except BaseException as error:
    print(f"raised {type(error).__name__}: {error!r}")
try:
    mill.state_dict()
except RuntimeError as error:
    print(error)
"""


# A State that meets the other ranks in the store of the environment before torch does.
BEFORE_TORCH = """
import sys
import torch_required
import torch, torch.distributed as dist
import millrace
model = torch.nn.Linear(64, 64)
mill = millrace.State(path="peers", select="topk:0.05", dense_below=0, model=model)
assert mill.session is not None and not dist.is_initialized()
# Not from the environment: for torchrun's store torch 2.14 asks for libuv, which Debian's build of it lacks.
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/gloo", rank=int(sys.argv[1]), world_size=2)
ddp = torch.nn.parallel.DistributedDataParallel(model)
ddp.register_comm_hook(mill, millrace.hook)
for step in range(3):
    ddp(torch.ones(1, 64)).sum().backward()
print("trained", mill.stats().steps, flush=True)
"""

# Trains 12 steps: "whole" does all of them, "killed" saves and dies after 6, "resumed" continues there. "forgetful" does so with
# residuals and velocities alone.
RESUMED = """
import os, signal, sys
import torch_required
import torch, torch.distributed as dist
import millrace
rank, kind, folder, servers = int(sys.argv[1]), *sys.argv[2:]
options = {"servers": servers, "job": kind, "select": "threshold_reuse:0.01:5", "reproducible": True}
if servers == "peers":
    options = {"path": "peers", "allreduce": "oktopk:thresholds_period=4:boundaries_period=5:boundaries=pooled"}
dist.init_process_group("gloo", init_method=f"file://{folder}/store.{kind}", rank=rank, world_size=2)
torch.manual_seed(1)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 200))
mill = millrace.State(momentum="correction:0.9", **options)
ddp.register_comm_hook(mill, millrace.hook)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
path, first = f"{folder}/rank{rank}.pt", 0
if kind in ("resumed", "forgetful"):
    first, model, state = torch.load(path)
    if kind == "forgetful":
        del state["retained"]
    ddp.module.load_state_dict(model)
    mill.load_state_dict(state)
for at in range(first, 12):
    if kind == "killed" and at == 6:
        torch.save((at, ddp.module.state_dict(), mill.state_dict()), path)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    draw = torch.Generator().manual_seed(2 * at + rank)
    optimizer.zero_grad()
    ddp(torch.randn(16, 64, generator=draw)).square().mean().backward()
    optimizer.step()
torch.save([parameter.detach() for parameter in ddp.parameters()], f"{folder}/{kind}{rank}.pt")
"""


@unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
class Programs(unittest.TestCase):
    """Whole programs: the end of the process, and Ctrl-C."""

    def setUp(self):
        self.shards = Shards()
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.shards.stop()
        self.folder.cleanup()

    def start(self, kind, servers=None):
        return [python(PROGRAM, rank, kind, servers or self.shards.servers, self.folder.name) for rank in range(2)]

    def test_EndWithoutFinish_OverPeers(self):
        for process in self.start("ends", "peers"):
            text = process.communicate(timeout=TIMEOUT_S)[0]
            self.assertEqual(process.returncode, 0, text)
            self.assertIn("trained\n", text)
            self.assertNotIn("not left as finished", text)

    def test_PeersMeet_BeforeTheProcessGroup(self):
        without_libuv = {"use_libuv": False} if "use_libuv" in (torch.distributed.TCPStore.__init__.__doc__ or "") else {}
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, **without_libuv)
        # Those of torchrun, whose own store this process serves.
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2",
                       "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        for process in [python(BEFORE_TORCH, rank, self.folder.name, RANK=str(rank), **environment) for rank in range(2)]:
            text = process.communicate(timeout=TIMEOUT_S)[0]
            self.assertEqual(process.returncode, 0, text)
            self.assertIn("trained 3\n", text)

    def test_KilledRank_IsNamedByTheOther(self):
        ranks = self.start("killed", "peers")
        try:
            for process in ranks:
                self.assertIn("blocked\n", iter(process.stdout.readline, ""))
            ranks[1].kill()
            text = ranks[0].communicate(timeout=TIMEOUT_S)[0]
            self.assertNotEqual(ranks[0].returncode, 0)
            self.assertIn("JobError: ", text)
            self.assertIn("rank 1 is gone", text)
        finally:
            for process in ranks:
                process.kill()
                process.communicate()

    def test_KilledAndResumed_HasTheBitsOfNoInterruption(self):
        ends = {"whole": 0, "killed": -signal.SIGKILL, "resumed": 0, "forgetful": 0}
        for servers in ("peers", self.shards.servers):
            with self.subTest(servers=servers), tempfile.TemporaryDirectory() as folder:
                for kind, code in ends.items():
                    ranks = [python(RESUMED, rank, kind, folder, servers) for rank in range(2)]
                    for process in ranks:
                        text = process.communicate(timeout=TIMEOUT_S)[0]
                        self.assertEqual(process.returncode, code, f"{kind}: {text}")
                for rank in range(2):
                    whole, resumed, forgetful = (torch.load(f"{folder}/{kind}{rank}.pt") for kind in ("whole", "resumed", "forgetful"))
                    self.assertTrue(all(map(torch.equal, whole, resumed)), f"rank {rank}: an interruption changed the parameters")
                    self.assertFalse(all(map(torch.equal, whole, forgetful)), "no threshold was reused: the test shows nothing")

    def test_EndWithoutFinish_LeavesTheJobAsFinished(self):
        for process in self.start("ends"):
            text = process.communicate(timeout=TIMEOUT_S)[0]
            self.assertEqual(process.returncode, 0, text)
            self.assertIn("trained\n", text)
            self.assertNotIn("not left as finished", text)

    def test_ControlC_EndsTheMeetingOfPeers(self):
        for kind in ("alone", "nowhere"):
            with self.subTest(kind=kind), socket.socket() as free:
                free.bind(("127.0.0.1", 0))  # nothing listens there
                process = python(MEETING, kind, free.getsockname()[1])
                try:
                    self.assertIn("ready\n", iter(process.stdout.readline, ""))
                    time.sleep(1)  # rank 0 waits in the meeting, which has no time limit
                    process.send_signal(signal.SIGINT)
                    text = process.communicate(timeout=INTERRUPTED_S)[0]
                    self.assertIn("KeyboardInterrupt", text)
                finally:
                    process.kill()
                    process.communicate()

    def test_ControlC_WhileABackwardPassComputes_LeavesNoState(self):
        """The exception may reach the hook's first line, behind which torch makes a RuntimeError of it."""
        process = python(COMPUTING, self.shards.servers, self.folder.name)
        text = process.communicate(timeout=TIMEOUT_S)[0]
        self.assertEqual(process.returncode, 0, text)
        self.assertRegex(text, "raised (KeyboardInterrupt|RuntimeError).*KeyboardInterrupt")
        self.assertIn("made between two steps", text)

    def interrupt_the_first(self, ranks):
        """Sends SIGINT to rank 0, which is blocked in a wait of at least 10 hours, and which must end."""
        try:
            for process in ranks:
                self.assertIn("blocked\n", iter(process.stdout.readline, ""))
            time.sleep(1)
            ranks[0].send_signal(signal.SIGINT)
            text = ranks[0].communicate(timeout=INTERRUPTED_S)[0]
            self.assertIn("KeyboardInterrupt", text)
        finally:
            for process in ranks:
                process.kill()
                process.communicate()

    def test_ControlC_EndsABackwardPassThatWaits(self):
        self.interrupt_the_first(self.start("blocked"))

    def test_ControlC_EndsTheStepsOfReplicaAndStore(self):
        for kind, count in (("replica", 2), ("store", 2), ("pull", 1)):
            with self.subTest(kind=kind):
                self.interrupt_the_first([python(STEP, rank, kind, self.shards.servers) for rank in range(count)])


if __name__ == "__main__":
    unittest.main()

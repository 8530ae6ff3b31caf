"""The faults of goodput.py: one class a kind. A fault prepares a job, strikes it, and waits until it has recovered."""

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

import etcd_members  # pylint: disable=wrong-import-position
import punisher_test as punisher  # pylint: disable=wrong-import-position

NETLAB = ROOT / "deploy/netlab.sh"
MEMBERS = 3
SWITCH_JOB = 21
SWITCH_SLOTS = 16
WINDOW = punisher.CHUNK  # each push has a window of its own
EXPONENT = -12  # a push of 1.0 is a whole number of the grid, so the switch rounds nothing
PARTITION_S = (0.2, 2.0)
END_S = 30


class Fault:
    """Faults of one kind. `folder` is the job's."""

    def __init__(self, options, folder):
        self.options, self.folder = options, Path(folder)

    @staticmethod
    def lacks(_options):
        """Returns why this machine cannot have such faults; empty: it can."""
        return ""

    def prepare(self, job):
        """Changes the job before its processes start."""

    def shard_flags(self, _shard):
        return ()

    def check(self):
        """Raises Failure where a process of the fault ended by itself."""

    def strike(self, job, draw):
        """Strikes once. Returns the seconds of the recovery, and other numbers of the row, each to be added up."""
        raise NotImplementedError

    def end(self):
        """Ends the processes that prepare() started."""


class Workers(Fault):
    def strike(self, job, draw):
        worker, begin = draw.randrange(punisher.WORKERS), time.monotonic()
        job.kill_worker(worker)
        job.start_worker(worker)
        job.wait(lambda: job.now(worker).updates > 0)
        return time.monotonic() - begin, {}


class Shards(Fault):
    def strike(self, job, draw):
        shard, begin = draw.randrange(punisher.SHARDS), time.monotonic()
        job.kill_shard(shard)
        job.wait_for_new_updates(lambda: job.start_shard(shard))
        return time.monotonic() - begin, {}


class Etcd(Fault):
    members = None

    @staticmethod
    def lacks(_options):
        return "" if etcd_members.is_here() else "no etcd on this machine: install etcd-server"

    def prepare(self, job):
        self.members = etcd_members.Members(self.folder, MEMBERS)
        self.members.leader()
        job.table = self.members.table()

    def strike(self, job, draw):
        member, begin = draw.randrange(MEMBERS), time.monotonic()
        self.members.kill(member)
        job.wait_for_new_updates(lambda: self.members.start(member))
        return time.monotonic() - begin, {}

    def end(self):
        if self.members:
            self.members.end()


class Switch(Fault):
    """The job is of path switch, and shard 0 takes over from a silent switch."""

    process = http = None
    address = "127.0.0.1:0"

    @staticmethod
    def lacks(options):
        return "" if options.switch.exists() else f"no {options.switch}: build millrace-switch"

    def prepare(self, job):
        key = self.folder / f"{SWITCH_JOB}.key"
        key.write_text("0123456789abcdef" * 4 + "\n", encoding="utf-8")
        key.chmod(0o600)
        (self.folder / "jobs.json").write_text(json.dumps({"jobs": [{
            "name": "goodput", "job": SWITCH_JOB, "key_file": str(key), "workers": punisher.WORKERS, "window_indices": WINDOW,
            "slots": SWITCH_SLOTS}]}), encoding="utf-8")
        self.start()
        job.settings += ["path=switch", f"switch_address={self.address}", f"switch_job={SWITCH_JOB}", f"switch_key_file={key}",
                         f"grid={WINDOW}:{EXPONENT}"]

    def shard_flags(self, shard):
        return ("--datagrams", "127.0.0.1:0", "--job-keys", self.folder) if shard == 0 else ()

    def start(self):
        with open(self.folder / "switch.log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [self.options.switch, "run", "--listen", self.address, "--jobs", self.folder / "jobs.json", "--http", "127.0.0.1:0", "--json"],
                stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        told = json.loads(line) if line else {}
        if "addresses" not in told:
            raise punisher.Failure(f"the switch did not start: {line.strip() or 'it said nothing'}")
        self.address, self.http = told["addresses"][0], told["http"]

    def check(self):
        if self.process and self.process.poll() is not None:
            raise punisher.Failure(f"the switch ended by itself with {self.process.returncode}")

    def strike(self, job, draw):
        turns, before, begin = self.turns(), self.fallbacks(job), time.monotonic()
        self.end()
        job.wait_for_new_updates(self.start)
        return time.monotonic() - begin, {"switch_turns": turns, "fallbacks": self.fallbacks(job) - before}

    def turns(self):
        """Returns the turns that this process of the switch has decided, as it reported last."""
        with urllib.request.urlopen(f"http://{self.http}/status", timeout=END_S) as answer:
            return json.load(answer)["jobs"][0]["events"].get("closed", 0)

    @staticmethod
    def fallbacks(job):
        """Returns how often the job has left the switch, by the log of worker 0."""
        log = Path(job.now(0).log.path).with_suffix(".log")
        return log.read_text(encoding="utf-8").count("is left: shard 0 decides")

    def end(self):
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


class Lab:
    """Hosts of deploy/netlab.sh. They go with this process, even where it is killed: their holder then reads the end of its input."""

    def __init__(self, hosts):
        self.holder = subprocess.Popen([NETLAB, "run", str(hosts), "none", "--", "bash", "-c", 'echo "$NETLAB_PREFIX"; exec cat'],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.prefix = self.holder.stdout.readline().strip()

    def enter(self, host):
        return ["ip", "netns", "exec", f"{self.prefix}-{host}"]

    def bridge(self, *arguments, rules=None):
        """Runs nft in the namespace of the bridge between the hosts."""
        return subprocess.run([*self.enter("switch"), "nft", *arguments], input=rules, capture_output=True, text=True, check=False)

    def prepare_cuts(self):
        """Returns why links cannot be cut; empty: they can be."""
        if not self.prefix:
            return self.holder.stderr.read().strip() or "deploy/netlab.sh made no hosts"
        made = self.bridge("-f", "-", rules="""table bridge cut {
  set hosts { type ifname; }
  counter lost { }
  chain forward {
    type filter hook forward priority 0;
    iifname @hosts counter name lost drop
    oifname @hosts counter name lost drop
  }
}""")
        return f"nft cannot drop packets of a bridge: {made.stderr.strip()}" if made.returncode else ""

    def change(self, verb, host):
        done = self.bridge(verb, "element", "bridge", "cut", "hosts", f"{{ {self.prefix}-{host} }}")
        if done.returncode:
            raise punisher.Failure(f"nft: {done.stderr.strip()}")

    def lost(self):
        """Returns the number of packets that were dropped so far."""
        return json.loads(self.bridge("-j", "list", "counter", "bridge", "cut", "lost").stdout)["nftables"][-1]["counter"]["packets"]

    def end(self):
        self.holder.communicate(timeout=END_S)


class Partition(Fault):
    """Each shard and each worker is a host of its own; a host's link carries nothing for some time."""

    lab = None

    @staticmethod
    def lacks(_options):
        if not shutil.which("nft"):
            return "'nft' is missing: run deploy/setup.sh (package nftables)"
        lab = Lab(1)
        try:
            return lab.prepare_cuts()
        finally:
            lab.end()

    def prepare(self, job):
        self.lab = Lab(punisher.SHARDS + punisher.WORKERS)
        if missing := self.lab.prepare_cuts():
            raise punisher.Failure(missing)
        hosts = range(1, punisher.SHARDS + punisher.WORKERS + 1)
        enter = [self.lab.enter(host) for host in hosts]
        job.enter_shard, job.enter_worker = enter[:punisher.SHARDS], enter[punisher.SHARDS:]
        job.addresses = [f"tcp://10.77.0.{host}:0" for host in hosts[:punisher.SHARDS]]

    def shard_flags(self, _shard):
        return ("--insecure",)  # the hosts see each other alone

    def strike(self, job, draw):
        host, lasts, before = draw.randint(1, punisher.SHARDS + punisher.WORKERS), draw.uniform(*PARTITION_S), self.lab.lost()
        begin = time.monotonic()
        self.lab.change("add", host)
        job.read_until(begin + lasts)
        whole = []

        def heal():
            self.lab.change("delete", host)
            whole.append(time.monotonic())

        job.wait_for_new_updates(heal)
        if self.lab.lost() == before:
            raise punisher.Failure("a partition dropped no packet")
        return time.monotonic() - whole[0], {"partitioned_s": whole[0] - begin}

    def end(self):
        if self.lab:
            self.lab.end()


KINDS = {"workers": Workers, "shards": Shards, "switch": Switch, "etcd": Etcd, "partition": Partition}

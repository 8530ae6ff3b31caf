#!/usr/bin/env python3
"""Tests of the binding's options, of their stub file and of the types.

    configs_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import copy
import pickle
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from shards import ENVIRONMENT, PACKAGE, ROOT, millrace

import numpy as np

SOURCE = ROOT / "worker/python"
sys.path.append(str(SOURCE))

import option_stubs  # noqa: E402

# Values that no rule of their form gives.
OTHER_VALUES = {"select": "topk:0.5", "reselect": "topk:0.25", "codec_up": "gap+qsgd4", "codec_down": "bitmap", "momentum": "nesterov:0.5",
                "grid": "1024:-10", "store": "adam:0.001:0.9:0.999:1e-08", "switch_codec": "gap+qsgd8", "recipe": "lr=0.1 batch=32"}

# torch's own types differ from release to release, and it may be absent. Functions of millrace.torch without types are not checked.
MYPY_OF_TORCH = """
[mypy]
[mypy-torch.*]
follow_imports = skip
ignore_missing_imports = True
[mypy-millrace.torch.*]
disallow_untyped_defs = False
disallow_incomplete_defs = False
disallow_untyped_calls = False
disallow_untyped_decorators = False
disallow_any_generics = False
disallow_subclassing_any = False
check_untyped_defs = False
warn_return_any = False
"""
PROGRAMS_WITH_TYPES = {"good.py": """
import millrace
job = millrace.JobConfig(workers=2, select='topk:0.1', dead_after=1.5)
workers: int = job.workers
me = millrace.WorkerConfig(servers=['tcp://a:1'])
step: int = millrace.Session(job, me, [millrace.Tensor('w', 3)]).push('w', [1])
""", "torch_good.py": """
import millrace
mill = millrace.State("tcp://a:7600,tcp://b:7600", job="run7", select="topk:0.01", codec="gap+qsgd4")
reveal_type(mill)
reveal_type(mill.stats().seconds_hidden)
reveal_type(millrace.hook)
reveal_type(millrace.fsdp_hook)
reveal_type(millrace.torch.Replica)
""", "bad.py": """
import millrace
job = millrace.JobConfig(selekt='topk:0.1')
millrace.Tensor('w')
millrace.State(4, job="run7")
millrace.State("tcp://a:7600", job="run7").statistics()
millrace.hook(job, None)
millrace.Sesion
"""}
# Begins of the types that mypy shows. Those of torch, which is skipped here, are Any.
REVEALED = [r'millrace\.torch\.state\.State"', r'(builtins\.)?float"', r"def \(state: millrace\.torch\.state\.State, bucket: ",
            r"def \(state: millrace\.torch\.state\.State\) -> def \(", r"def \(model: Any, servers: "]


def other_value(info):
    """Returns a value of Python that is not the option's default."""
    if info.name in OTHER_VALUES:
        return OTHER_VALUES[info.name]
    if info.form == "on|off":
        return info.default == "off"
    if info.form == "DURATION":
        return 1.25
    if info.form == "HOST:PORT":
        return "127.0.0.1:9100"
    if info.form == "RATE":
        return 2.5e9
    if info.form == "LIST":
        return ["tcp://a:1", "tcp://b:2"]
    if info.form == "NUMBER":
        numbers = (64, 2, 8_972, 300) if info.whole else (0.5,)
        return next(number for number in numbers if info.least <= number <= info.most and str(number) != info.default)
    return info.form.split("|")[-1] if "|" in info.form else "word"


class Configs(unittest.TestCase):
    def test_Names_AreThoseOfTheOptionsPage(self):
        page = (ROOT / "worker/OPTIONS.md").read_text(encoding="utf-8")
        listed = re.findall(r"^- `(\w+)` \(", page, re.MULTILINE)
        self.assertEqual(sorted(listed), sorted(info.name for info in millrace.options()))

    def test_EveryOption_IsReadAndWritten(self):
        for kind in (millrace.JobConfig, millrace.WorkerConfig):
            for name, info in kind._options.items():
                with self.subTest(option=name):
                    value = other_value(info)
                    config = kind(**{name: value})
                    self.assertEqual(getattr(config, name), value)
                    self.assertEqual(list(config.changed()), [name])
                    self.assertEqual(kind(**{info.alias: config.text(name)}), config)
                    self.assertEqual(eval(repr(config), {kind.__name__: kind}), config)
                    self.assertEqual(pickle.loads(pickle.dumps(config)), config)
                    self.assertNotEqual(config, kind())
                    setattr(config, name, None)
                    self.assertEqual(config, kind())

    def test_Copy_IsIndependent(self):
        job = millrace.JobConfig(name="a", workers=2)
        for made in (job.copy(), copy.copy(job), copy.deepcopy(job)):
            made.workers = 3
            self.assertEqual((job.workers, made.workers, made.name), (2, 3, "a"))

    def test_Numbers_OfNumpyAreTaken(self):
        job = millrace.JobConfig(workers=np.int64(3), clip=np.float32(0.5), audit=np.bool_(True), dead_after=np.float64(2))
        self.assertEqual((job.workers, job.clip, job.audit, job.dead_after), (3, 0.5, True, 2.0))

    def test_UnknownNames_AreRefusedWithTheNearest(self):
        with self.assertRaisesRegex(TypeError, "JobConfig has no option 'selekt'; did you mean 'select'"):
            millrace.JobConfig(selekt="topk:0.1")
        job = millrace.JobConfig()
        with self.assertRaisesRegex(AttributeError, "did you mean 'workers'"):
            job.worker = 2
        with self.assertRaisesRegex(AttributeError, "no option 'zzz': millrace.options"):
            job.zzz
        self.assertIn("codec_up", dir(job))

    def test_BadValues_AreRefusedWithTheOption(self):
        for kind, option, value, sentence in ((millrace.JobConfig, "select", "topq:0.1", "select"), (millrace.JobConfig, "workers", 0, "workers"),
                                              (millrace.JobConfig, "workers", 1.5, "whole number"), (millrace.JobConfig, "mode", "sync", "synchronous"),
                                              (millrace.WorkerConfig, "connect_timeout", 0.0005, "whole milliseconds")):
            with self.subTest(option=option), self.assertRaisesRegex(millrace.JobError, sentence) as raised:
                kind(**{option: value})
            self.assertEqual((raised.exception.code, raised.exception.origin), ("invalid_argument", "worker"))
        with self.assertRaises(TypeError):
            millrace.JobConfig(workers=object())

    def test_Quantities_AreFiniteAndWrittenWithoutExponent(self):
        for value in (float("inf"), float("-inf"), float("nan")):
            for kind, option in ((millrace.JobConfig, "deadline"), (millrace.WorkerConfig, "link_rate")):
                with self.subTest(option=option, value=value), self.assertRaisesRegex(ValueError, f"^{option} is "):
                    kind(**{option: value})
        with self.assertRaisesRegex(millrace.JobError, "deadline: '0.00001ms': it takes whole milliseconds"):
            millrace.JobConfig(deadline=1e-8)
        for value in (10**400, 1e20):
            with self.assertRaisesRegex(millrace.JobError, "deadline: '[0-9]+ms' is not a duration"):
                millrace.JobConfig(deadline=value)
        with self.assertRaisesRegex(millrace.JobError, "link_rate: '100000000000000000bit' is not a rate"):
            millrace.WorkerConfig(link_rate=1e17)

    def test_OptionsThatContradict_AreRefusedByCheck(self):
        me = millrace.WorkerConfig(worker=0, servers="tcp://127.0.0.1:9")
        job = millrace.JobConfig(name="j", quorum=1)
        with self.assertRaisesRegex(millrace.JobError, "quorum"):
            millrace.check(job, me, [millrace.Tensor("w", 10)])
        job.mode = "partial"
        millrace.check(job, me, [millrace.Tensor("w", 10)])
        with self.assertRaisesRegex(millrace.JobError, "tensor 'w', select: .*topq"):
            millrace.check(job, me, [millrace.Tensor("w", 10, select="topq:1")])
        with self.assertRaisesRegex(ValueError, "on_await"):
            millrace.check(job, me, [millrace.Tensor("w", 10, weights=np.zeros(10, np.float32), scale=1.0, apply="later")])

    def test_Help_HasEveryOption(self):
        for info in millrace.options():
            owner = millrace.JobConfig if info.name in millrace.JobConfig._options else millrace.WorkerConfig
            self.assertIn(f"\n{info.name} (", owner.__doc__)

    def test_Package_NeedsNeitherNumpyNorTorch(self):
        program = "import sys, millrace\nassert not {'numpy', 'torch'} & set(sys.modules)\nprint(millrace.__version__)"
        done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True)
        self.assertRegex(done.stdout, r"^\d+\.\d+\.\d+\n$")

    def test_Module_ShowsItsEntryAlone(self):
        module, = PACKAGE.glob("millrace/_millrace.*.so")
        done = subprocess.run(["nm", "-D", "--defined-only", module], capture_output=True, text=True, check=True)
        self.assertEqual([line.split()[-1] for line in done.stdout.splitlines()], ["PyInit__millrace"])


class Types(unittest.TestCase):
    def test_Stub_IsThatOfTheOptions(self):
        self.assertEqual(option_stubs.STUB.read_text(encoding="utf-8"), option_stubs.stub(),
                         "run PYTHONPATH=build/dev/python worker/python/option_stubs.py --write")

    def test_StubOfTheModule_HasItsNames(self):
        text = (SOURCE / "millrace/_millrace.pyi").read_text(encoding="utf-8")
        from millrace import _millrace
        for owner in (_millrace, _millrace.Session, _millrace.Array, _millrace.LogQueue, _millrace.JobOptions):
            for name in vars(owner):
                if not name.startswith("_"):
                    self.assertRegex(text, rf"(def|class) {name}\b")

    def test_Mypy_AcceptsThePackageAndPrograms(self):
        if subprocess.run([sys.executable, "-c", "import mypy"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this Python has no mypy (Debian's package mypy)")
        with tempfile.TemporaryDirectory() as folder:
            programs = [Path(folder) / name for name in PROGRAMS_WITH_TYPES]
            for path in programs:
                path.write_text(PROGRAMS_WITH_TYPES[path.name], encoding="utf-8")
            rules = Path(folder) / "mypy.ini"
            rules.write_text(MYPY_OF_TORCH, encoding="utf-8")
            # One run: most of its time goes to the standard library. The stub beside configs.py is read in its place.
            package = [path for path in sorted((SOURCE / "millrace").rglob("*.py")) if path.name != "configs.py"]
            command = [sys.executable, "-m", "mypy", "--strict", "--config-file", rules, "--cache-dir", PACKAGE.parent / "mypy_cache",
                       "--follow-imports=silent", "--no-error-summary", *package, *programs]
            done = subprocess.run([*map(str, command)], env={**ENVIRONMENT, "MYPYPATH": str(SOURCE)}, capture_output=True, text=True,
                                  check=False)
            # mypy's cache keeps errors with the folder of an earlier run.
            lines = [re.sub(r"^\S*/(?=\w+\.py:)", "", line) for line in done.stdout.splitlines()]
        errors = [line.partition(": error:")[0] for line in lines if ": error:" in line]
        self.assertEqual(errors, [f"bad.py:{line}" for line in range(3, 9)], done.stdout + done.stderr)
        revealed = [line.partition('"')[2] for line in lines if "Revealed type" in line]
        self.assertEqual(len(revealed), len(REVEALED), done.stdout)
        for found, begin in zip(revealed, REVEALED):
            self.assertRegex(found, "^" + begin)


if __name__ == "__main__":
    unittest.main()

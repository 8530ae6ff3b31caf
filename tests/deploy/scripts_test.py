#!/usr/bin/env python3
"""Scripts of deploy/ in a copy of the tree, with stand-ins for the programs that build: paths are those of the caller.
tests/bench/cuda/card.sh with stand-ins for a card and its tools.

    scripts_test.py SOURCE_TREE [unittest arguments]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1)).resolve()
TIMEOUT_S = 60
STAND_INS = {
    "apt-cache": "echo Package: one",
    "cmake": 'echo "$*" >>"$CMAKE_LOG"',
    "ctest": 'echo "$*" >>"$CTEST_LOG"',
    "cpack": 'mkdir -p "$(dirname "$2")/packages" && : >"$(dirname "$2")/packages/one.deb"',  # of cpack --config FILE
    "dpkg-shlibdeps": ":",
    "mmdebstrap": 'for last; do :; done; : >"$last"',
}


def is_chosen(call, labels):
    """Whether ctest with these arguments runs a test that has these labels."""
    words = call.split()

    def patterns(flag):
        return [value for word, value in zip(words, words[1:]) if word == flag]

    def has(pattern):
        return any(re.search(pattern, label) for label in labels)

    return all(map(has, patterns("-L"))) and not any(map(has, patterns("-LE")))


class Scripts(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        folder = Path(temporary.name).resolve()
        self.tree, self.caller, self.programs, self.log = (folder / name for name in ("tree", "caller", "programs", "log"))
        self.chosen = folder / "chosen"
        self.caller.mkdir()
        for name in ("demo.sh", "packages.sh", "python.sh", "test.sh"):
            (self.tree / "deploy").mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / "deploy" / name, self.tree / "deploy" / name)
        for name, line in STAND_INS.items():
            self.write_program(self.programs / name, line)

    def write_program(self, path, line):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nset -e\n{line}\n", encoding="utf-8")
        path.chmod(0o755)

    def output_of(self, script, *arguments, folder=None, code=0):
        """Runs a script by a relative path, and checks its exit code. Returns its output, and the calls of cmake."""
        folder = folder or self.caller
        self.log.write_text("", encoding="utf-8")
        environment = os.environ | {"PATH": f"{self.programs}:{os.environ['PATH']}", "CMAKE_LOG": str(self.log),
                                    "CTEST_LOG": str(self.chosen)}
        ended = subprocess.run([os.path.relpath(self.tree / "deploy" / script, folder), *arguments], cwd=folder, env=environment,
                               capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        return ended.stdout, self.log.read_text(encoding="utf-8")

    def test_PackagesWriteTheImageWhereTheCallerWantsIt(self):
        _, calls = self.output_of("packages.sh", "--image", "image/millrace.tar")
        self.assertTrue((self.caller / "image/millrace.tar").exists())
        self.assertIn("--preset package", calls)

    def test_PackagesTakeTheBuildOfTheCaller(self):
        _, calls = self.output_of("packages.sh", "--build", "own")
        self.assertTrue((self.caller / "own/packages/one.deb").exists())
        self.assertEqual(calls, "")
        _, calls = self.output_of("packages.sh", "--build", "build/package", folder=self.tree)
        self.assertIn("--preset package", calls)

    def test_ThePythonPackageGoesIntoAFolderOfTheCaller(self):
        _, calls = self.output_of("python.sh", "--target", "some/folder")
        self.assertTrue((self.caller / "some/folder").is_dir())
        self.assertIn(f"--prefix {self.caller}/some/folder\n", calls)

    def test_HelpIsShownInEveryFolder(self):
        for script, flag in (("packages.sh", "--image FILE"), ("python.sh", "--venv DIR")):
            self.assertIn(flag, self.output_of(script, "--help")[0])

    def test_ReleaseRunsTheTestsThatCiRunsUnderSanitizers(self):
        self.output_of("test.sh", "--release", "--stage", "tsan", "--stage", "asan")
        calls = self.chosen.read_text(encoding="utf-8").splitlines()
        for build, labels in (("tsan", ("unit", "tsan", "only_tsan")), ("tsan", ("integration", "tsan", "only_tsan")),
                              ("asan", ("unit", "only_asan")), ("asan", ("sim",)), ("asan", ("unit",))):
            runs = [call for call in calls if f"--preset {build} " in call and is_chosen(call, labels)]
            self.assertEqual(len(runs), 1, (build, labels, calls))
        self.assertFalse([call for call in calls if is_chosen(call, ("integration",))], "these run in stage dev")

    def test_TheStagesOfOtherReleasesFailWhereTheirTestSkips(self):
        self.write_program(self.tree / "deploy/setup.sh", ":")
        for suite, test in (("trixie", "python_torch_ddp_test"), ("forky", "python_torch_fsdp_test")):
            for result, code in (("   Passed    9.81 sec", 0), ("***Skipped   0.42 sec", 1)):
                said = f'case "$* " in "{suite} "*"--python "*) echo "1/1 Test #7: {test} .....{result}" ;; esac'
                self.write_program(self.tree / "deploy/debian-root.sh", said)
                self.output_of("test.sh", "--stage", suite, code=code)

    def test_ExtendTestDependsOnTheScriptsThatItRuns(self):
        listed = (SOURCE / "tests/integration/extend/depends.txt").read_text(encoding="utf-8").splitlines()
        scripts = re.findall(r'"(tests/[\w/]+\.py)"', (SOURCE / "tests/integration/extend_test.py").read_text(encoding="utf-8"))
        self.assertIn("tests/lint/lint.py", scripts)
        for script in scripts:
            self.assertTrue(any(script == path or script.startswith(path + "/") for path in listed), script)

    def test_EveryScriptThatCanSkip_IsInTheListOfSkips(self):
        skips = (SOURCE / "deploy/OPERATING.md").read_text(encoding="utf-8")
        skips = skips[skips.index("Tests that cannot run skip"):skips.index("## Limits")]
        ends = re.compile(r"exit\([7]7\)|SKIPPED = [7]7|\bExits [7]7\b")
        lacking = [path.name for path in (SOURCE / "tests").rglob("*_test.py")
                   if "bench" not in path.parts and ends.search(path.read_text(encoding="utf-8")) and f"`{path.stem}`" not in skips
                   and f"{path.parent.name}_{path.stem}`" not in skips]
        for path in (SOURCE / "tests").rglob("CMakeLists.txt"):
            of_cards = re.findall(r"\bNAME (\w+) (?:SCRIPT \S+ )?LABELS (?:python )?gpu\b", path.read_text(encoding="utf-8"))
            lacking += [name for name in of_cards if f"`{name.removeprefix('python_')}`" not in skips]
        self.assertEqual(lacking, [])

    def test_TheDemoRunsInTheFolderOfTheCaller(self):
        self.write_program(self.tree / "deploy/setup.sh", ":")
        self.write_program(self.tree / "build/release/bin/millrace", 'echo "$(pwd -P) $*"')
        self.assertEqual(self.output_of("demo.sh", "--folder", "here")[0], f"{self.caller} demo --folder here\n")

    def test_TheHelpOfTheDemoOfPyTorchBuildsNothing(self):
        self.write_program(self.tree / "deploy/setup.sh", "exit 3")
        shutil.copytree(SOURCE / "worker/python/demo", self.tree / "worker/python/demo")
        text, calls = self.output_of("demo.sh", "--torch", "--help")
        self.assertIn("--link-rate", text)
        self.assertIn("torchrun's environment", text)
        self.assertEqual(calls, "")


class CardScript(unittest.TestCase):
    SANITIZERS = [f"{tool}{of}" for tool in ("memcheck", "racecheck", "initcheck") for of in ("", "_residuals", "_sessions")]
    STEPS = ["cuda_device_test", "residual_device_test", "session_device_test", "torch_cuda_test", "cuda_bench", "compile_cub_bench",
             "cub_bench", "torch_bench", *SANITIZERS, "ncu", "nsys", "nsys_stats", "run_files"]

    def setUp(self):
        self.tree = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.programs, self.carried, self.out = (self.tree / name for name in ("programs", ".card/bin", "out"))
        script = self.tree / "tests/bench/cuda/card.sh"
        script.parent.mkdir(parents=True)
        shutil.copy(SOURCE / "tests/bench/cuda/card.sh", script)
        self.write_program("nvidia-smi", "echo 'Made-up card, 9.0, 580.1'")
        self.write_program("nvcc", "exit 1")
        self.write_program("cmake", "exit 1")
        self.write_program("python3", "echo no torch here >&2; exit 77")

    def write_program(self, name, line, folder=None):
        path = (folder or self.programs) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        path.chmod(0o755)

    def verdicts(self, *arguments, code=0):
        """Runs the script. Returns {step: verdict} in the order of its output."""
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "OUT": str(self.out)}
        ended = subprocess.run([self.tree / "tests/bench/cuda/card.sh", *arguments], env=environment, capture_output=True, text=True,
                               timeout=TIMEOUT_S, check=False)
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        return dict(line.split(None, 1) for line in ended.stdout.splitlines())

    def test_DryRunPrintsTheStepsAndStartsNone(self):
        self.write_program("nvidia-smi", "exit 9")
        steps = self.verdicts("--dry-run")
        self.assertEqual(list(steps), ["configure", "build", *self.STEPS])
        for step, text in steps.items():
            self.assertRegex(text, r"^at most \d+ s, [a-z]+\.(txt|json|csv): \S", step)
        self.assertEqual(list(self.verdicts("--dry-run", "sanitizers"))[2:], self.SANITIZERS)
        self.assertFalse(self.out.exists())

    def test_EachStepHasAVerdict(self):
        self.write_program("cuda_device_test", "echo '[  PASSED  ] 50 tests.'; echo '[  SKIPPED ] 3 tests, listed below:'", self.carried)
        self.write_program("worker_session_device_test", "echo '[  PASSED  ] 0 tests.'; echo '[  SKIPPED ] 6 tests, listed below:'", self.carried)
        self.write_program("millrace_cuda_bench", "echo '{}'; echo top_k 1 >&2", self.carried)
        self.write_program("millrace-server", "", self.carried)
        self.write_program("compute-sanitizer", 'test "$2" != racecheck || exit 9')
        verdicts = self.verdicts("tests", "figures", "sanitizers", code=1)
        self.assertEqual(verdicts, {
            "card": "Made-up card, 9.0, 580.1", "configure": "failed with exit code 1", "cuda_device_test": "passed, 50 tests, 3 skipped",
            "residual_device_test": "skipped: no worker_residual_device_test here",
            "session_device_test": "skipped, 6 skipped", "torch_cuda_test": "skipped: no torch here", "cuda_bench": "passed",
            "compile_cub_bench": "failed with exit code 1", "cub_bench": "skipped: no millrace_cub_bench here",
            "torch_bench": "skipped: no torch here", "run_files": "skipped: no torch here",
            **{step: "failed with exit code 9" if step.startswith("racecheck") else "passed" for step in self.SANITIZERS},
            **{step: "skipped: no worker_residual_device_test here" for step in self.SANITIZERS if step.endswith("_residuals")}})
        self.assertEqual(len((self.out / "verdicts.txt").read_text(encoding="utf-8").splitlines()), len(verdicts))
        self.assertEqual((self.out / "kernels.json").read_text(encoding="utf-8"), "{}\n")
        self.assertIn("top_k 1", (self.out / "log.txt").read_text(encoding="utf-8"))

    def test_StepsEndWithTheTimeOfTheScript(self):
        for name in ("cuda_device_test", "worker_session_device_test", "millrace_cuda_bench", "millrace_cub_bench"):
            self.write_program(name, "sleep 50", self.carried)
        verdicts = self.verdicts("--seconds", "2", "tests", code=1)
        self.assertRegex(verdicts["cuda_device_test"], "^stopped after [12] s$")
        self.assertEqual(verdicts["session_device_test"], "skipped: no time is left")

    def test_AProfileThatIsNotTakenFailsNothing(self):
        self.write_program("cmake", "exit 0")
        self.write_program("nsys", "exit 1")
        verdicts = self.verdicts("--seconds", "08", "profiles")
        self.assertEqual(verdicts["nsys"], "skipped: no millrace_cuda_bench here")
        self.assertEqual(verdicts["nsys_stats"], "skipped: no profile here")

    def test_FiguresOfTorchAreSkippedWithoutItsCard(self):
        for torch in ("raise ImportError", "class cuda:\n    is_available = staticmethod(lambda: False)"):
            (self.tree / "torch.py").write_text(torch + "\n", encoding="utf-8")
            ended = subprocess.run([sys.executable, SOURCE / "tests/bench/cuda/torch_bench.py"], capture_output=True, text=True,
                                   env=os.environ | {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"},
                                   timeout=TIMEOUT_S, check=False)
            self.assertEqual((ended.returncode, ended.stderr), (77, "no torch with CUDA here\n"))

    def test_AMachineWithoutACardIsAnError(self):
        self.write_program("nvidia-smi", "exit 9")
        self.verdicts(code=3)
        self.verdicts("some", code=2)


if __name__ == "__main__":
    unittest.main()

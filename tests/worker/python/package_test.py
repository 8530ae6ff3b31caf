#!/usr/bin/env python3
"""The installed package and the wheel: complete, with right hashes, and usable without the build folder.

    package_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import base64
import hashlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from shards import PACKAGE, ROOT

SOURCE = ROOT / "worker/python"
USES = "import millrace, sys\nprint(millrace.__file__, millrace.JobConfig(name='x').name, millrace.copies())"


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.site = Path(cls.folder.name) / "site"
        subprocess.run(["cmake", "--install", PACKAGE.parent, "--component", "python", "--strip", "--prefix", cls.site],
                       check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def uses(self, site):
        environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", USES], env=environment, cwd=self.folder.name, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith(f"{site}/millrace/__init__.py x "), done.stdout)

    def test_InstalledFiles_AreThoseOfTheSource(self):
        installed = {str(path.relative_to(self.site)) for path in self.site.rglob("*") if path.is_file()}
        modules = {name for name in installed if name.startswith("millrace/_millrace.") and name.endswith(".so")}
        self.assertEqual(len(modules), 1)
        source = {str(path.relative_to(SOURCE)) for pattern in ("*.py", "*.pyi", "py.typed") for path in (SOURCE / "millrace").rglob(pattern)}
        self.assertEqual(installed - modules, source)
        self.uses(self.site)

    def test_Module_IsLinkedToNoTorchAndNoPython(self):
        """One build serves every version of torch."""
        module, = (self.site / "millrace").glob("_millrace.*.so")
        said = subprocess.run(["readelf", "--dynamic", module], check=True, capture_output=True, text=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", said)
        self.assertIn("libc.so.6", needed)
        self.assertEqual([name for name in needed if re.match("lib(torch|c10|python|cuda)", name)], [])

    def test_EveryPublicName_HasADocstring(self):
        import millrace
        public = [(name, getattr(millrace, name)) for name in millrace.__all__]
        public += [(f"peers.{name}", found) for name, found in vars(millrace.peers).items()
                   if not name.startswith("_") and (getattr(found, "__module__", "") or "").startswith("millrace")]
        public += [(f"{name}.{member}", value) for name, found in public if inspect.isclass(found)
                   for member, value in vars(found).items() if not member.startswith("_") and (callable(value) or isinstance(value, property))]
        self.assertGreater(len(public), 100)
        self.assertEqual([name for name, found in public if not inspect.getdoc(found)], [])

    def test_Wheel_HasItsRecordAndWorksUnpacked(self):
        out = Path(self.folder.name) / "wheels"
        out.mkdir()
        subprocess.run([sys.executable, SOURCE / "make_wheel.py", self.site, out], check=True, capture_output=True)
        path, = out.glob("millrace-*-cp*-linux_*.whl")
        unpacked = Path(self.folder.name) / "unpacked"
        with zipfile.ZipFile(path) as wheel:
            self.assertIsNone(wheel.testzip())
            record = next(name for name in wheel.namelist() if name.endswith("/RECORD"))
            lines = wheel.read(record).decode().splitlines()
            self.assertEqual([line.split(",")[0] for line in lines], wheel.namelist())
            for name, digest, size in (line.split(",") for line in lines[:-1]):
                data = wheel.read(name)
                hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, size), (f"sha256={hashed}", str(len(data))))
            wheel.extractall(unpacked)
        self.uses(unpacked)

    def test_Version_IsTheLibrarys(self):
        sys.path.append(str(SOURCE))
        import make_wheel
        import millrace
        self.assertEqual(make_wheel.version_of(make_wheel.PROJECT), millrace.__version__)


if __name__ == "__main__":
    unittest.main()

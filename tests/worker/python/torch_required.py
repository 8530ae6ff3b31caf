"""Ends a test with code 77, and a sentence, where PyTorch is absent; finds the package `millrace` of a build.

Takes the folder of the programs and the folder of the package off the front of the command line.
"""

import importlib.util
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def _folder(default):
    given = sys.argv.pop(1) if len(sys.argv) > 1 and "/" in sys.argv[1] else ROOT / default
    return Path(given).resolve()


PROGRAMS = _folder("build/dev/bin")
PACKAGE = _folder("build/dev/python")

if importlib.util.find_spec("torch") is None:
    print("skipped: this Python has no PyTorch (Debian's package python3-torch)", file=sys.stderr)
    sys.exit(77)
sys.dont_write_bytecode = True  # the package of a build has links to the sources
sys.path.insert(0, str(PACKAGE))

BUILT = any(PACKAGE.glob("millrace/_millrace*.so"))
if not BUILT:
    # millrace.torch is Python alone: tests with a fake session run from the sources.
    package = types.ModuleType("millrace")
    package.__path__ = [str(ROOT / "worker/python/millrace")]
    sys.modules["millrace"] = package

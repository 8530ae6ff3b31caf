#!/usr/bin/env python3
"""Writes a wheel of an installed package: deploy/python.sh calls it, where the network for a build tool is missing.

    make_wheel.py FOLDER OUT    FOLDER has millrace/; the wheel goes into OUT

The tag is that of this interpreter and of Linux on this processor. The wheel needs Debian's libraries.
"""

import base64
import hashlib
import re
import sys
import sysconfig
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "CMakeLists.txt"


def version_of(project):
    """Returns the version that the build has."""
    return re.search(r"^project\(millrace VERSION (\S+)", project.read_text(encoding="utf-8"), re.MULTILINE).group(1)


def record_of(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def write_wheel(folder, out):
    """Returns the path of the wheel."""
    version = version_of(PROJECT)
    abi = "cp" + sysconfig.get_config_var("py_version_nodot")
    tag = f"{abi}-{abi}-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    info = f"millrace-{version}.dist-info"
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: millrace\nVersion: {version}\nRequires-Python: >=3.9\n".encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = "".join(record_of(name, data) for name, data in files.items()) + f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = record.encode()
    path = out / f"millrace-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    return path


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    print(write_wheel(Path(sys.argv[1]), Path(sys.argv[2])))
    return 0


if __name__ == "__main__":
    sys.exit(main())

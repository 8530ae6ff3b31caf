#!/usr/bin/env python3
"""The binary interface of an installed library: layout of the public types and exported symbols, as recorded for its number.

    abi_test.py LIBRARY LAYOUT_PROGRAM [--write]

LAYOUT_PROGRAM is - for a library without types of its own. The record of SONAME libmillrace.so.0.2 is
libmillrace.so.0.2.txt in this folder. A change needs a new number (VERSION
in the top CMakeLists.txt) and a record of its own, which --write makes. The record is of x86-64 with libstdc++.
"""
import difflib
import pathlib
import platform
import re
import subprocess
import sys

SKIPPED = 77


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def soname_of(library):
    return re.search(r"SONAME.*\[(.*)\]", output_of("readelf", "-dW", library)).group(1)


def symbols_of(library):
    lines = output_of("nm", "-D", "--defined-only", "-C", library).splitlines()
    return sorted({"symbol " + line.split(" ", 2)[2] for line in lines})


def main():
    if platform.machine() != "x86_64":
        print("the record is of x86-64")
        return SKIPPED
    library, layout = sys.argv[1:3]
    soname = soname_of(library)
    record = pathlib.Path(__file__).parent / f"{soname}.txt"
    found = ([] if layout == "-" else output_of(layout).splitlines()) + symbols_of(library)
    if "--write" in sys.argv[3:]:
        record.write_text("\n".join(found) + "\n")
        return 0
    if not record.exists():
        print(f"{record} is missing: abi_test.py {library} {layout} --write makes it")
        return 1
    difference = list(difflib.unified_diff(record.read_text().splitlines(), found, str(record), "this build", lineterm=""))
    if difference:
        print("\n".join(difference))
        print(f"The binary interface changed under the number {soname}: raise VERSION in CMakeLists.txt, then --write.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

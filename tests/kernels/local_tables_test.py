#!/usr/bin/python3
"""Checks that no vector kernel copies a table to the stack: local_tables_test.py ARCHIVE

GCC copies a local constexpr array in every call unless it may merge constants (kernels/CMakeLists.txt). A large copy is `rep movs`.
Exit codes: 0 passed, 1 failed, 77 skipped.
"""

import re
import subprocess
import sys

SKIPPED = 77


def main() -> int:
    archive = sys.argv[1]
    try:
        listing = subprocess.run(["objdump", "-dC", "--no-show-raw-insn", archive], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: objdump: {error}")
        return SKIPPED
    if "file format elf64-x86-64" not in listing:
        print("skipped: the archive is not for x86-64")
        return SKIPPED
    kernels, copies, name = set(), {}, ""
    for line in listing.splitlines():
        heading = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if heading:
            name = heading[1]
            if re.search(r"\bN_[A-Z0-9_]+::", name):
                kernels.add(name)
        elif name in kernels and re.search(r"\brep movs", line):
            copies[name] = copies.get(name, 0) + 1
    for name, count in sorted(copies.items()):
        print(f"{name}: {count} copies of a table or a structure", file=sys.stderr)
    scans = [name for name in kernels if "N_AVX2::scan_both(" in name]
    if not scans:
        print(f"no N_AVX2::scan_both() among {len(kernels)} kernels: this test looks at the wrong names", file=sys.stderr)
    return 1 if copies or not scans else 0


if __name__ == "__main__":
    sys.exit(main())

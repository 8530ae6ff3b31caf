#!/usr/bin/env python3
"""Prints the entries of a Millrace container, one a line. The reader is the package container_reader beside this file."""

import argparse
import sys

from container_reader.container import decode
from container_reader.errors import Refused


def main() -> int:
    """Prints the entries of a container, one a line."""
    arguments = argparse.ArgumentParser(description="Print the entries of a Millrace container, one a line.")
    arguments.add_argument("file", help="a file that holds one container: the payload of a Contribution or an Update")
    arguments.add_argument("--dimension", type=int, help="refuse a container of another dimension")
    options = arguments.parse_args()
    try:
        with open(options.file, "rb") as file:
            stream = decode(file.read(), options.dimension)
    except (OSError, Refused) as error:
        print(f"read_container: {options.file}: {error}", file=sys.stderr)
        return 1
    for index, value in zip(stream.indices, stream.values):
        print(index, value)
    return 0


if __name__ == "__main__":
    sys.exit(main())

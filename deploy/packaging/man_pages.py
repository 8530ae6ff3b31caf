#!/usr/bin/env python3
"""Writes the manual pages of a program and of its commands, from their --help: NAME.1.gz, NAME-COMMAND.1.gz, …

    man_pages.py PROGRAM VERSION FOLDER

The same help gives the same bytes. Exit codes: 0 done, 1 a --help failed, 2 usage.
"""

import gzip
import re
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 60
HEADING = re.compile(r"^([A-Z][^:]*?)(?: \(([^)]*)\))?:?$")
TEXT_COLUMN = 34  # of an item's text; a longer name has its text on the next line
SUBCOMMAND = re.compile(r"^  ([a-z][a-z0-9-]*) {2,}", re.MULTILINE)
# Sections that argument parsers write as items with a text; all other indented lines are shown as they are.
ITEMS = re.compile(r"^ {2}(-\w,)?--?[a-z]|^ {2}\w+ [A-Z]+( \.\.\.)? {2,}")


def escaped(text):
    """The text as roff shows it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def help_of(program, command):
    ended = subprocess.run([program, *command, "--help"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"man_pages: {program} {' '.join(command)} --help: {ended.stderr or ended.returncode}")
    return ended.stdout


def blocks_of(lines):
    """The lines as blocks between empty lines."""
    block = []
    for line in [*lines, ""]:
        if line:
            block.append(line)
        elif block:
            yield block
            block = []


def items(lines):
    """The flags or commands of a section: a name, and its text on the same line or on the next."""
    said = []
    for line, following in zip(lines, [*lines[1:], ""]):
        if line.startswith(" " * TEXT_COLUMN):
            said.append(escaped(line.strip()))
            continue
        column = len(line) if following.startswith(" " * TEXT_COLUMN) else TEXT_COLUMN
        said += [".TP", f"\\fB{escaped(line[:column].strip())}\\fR", *map(escaped, filter(None, [line[column:].strip()]))]
    return said


def as_they_are(lines):
    return [".nf", *map(escaped, lines), ".fi"]


def section(block):
    """A block of the help behind the usage, as roff."""
    heading = HEADING.match(block[0]) if len(block) > 1 and not block[0].startswith(" ") and block[1].startswith(" ") else None
    if not heading:
        indented = [line.startswith(" ") for line in block]
        return [".PP", *(as_they_are(block) if any(indented) else map(escaped, block))]
    title, remark = heading.groups()
    lines = [f'.SH "{escaped(title.upper())}"', *([escaped(remark) + "."] if remark else [])]
    is_items = title == "Subcommands" or all(ITEMS.match(line) or line.startswith(" " * TEXT_COLUMN) for line in block[1:])
    return lines + (items(block[1:]) if is_items else as_they_are(block[1:]))


def page(program, command, said, version, others):
    """One page: `said` is the --help of the command, `others` are the pages that it names."""
    name = "-".join((program, *command))
    before, _, behind = said.partition("Usage: ")
    description = list(blocks_of(before.rstrip().split("\n")))
    usage, _, rest = behind.partition("\n")
    summary = re.sub(rf"^({re.escape(program)}|Millrace): ", "", description[0][0]).rstrip(".")
    lines = [f'.TH "{name.upper()}" 1 "" "Millrace {version}" "Millrace"', ".SH NAME", f"{name} \\- {escaped(summary)}",
             ".SH SYNOPSIS", f".B {escaped(usage)}"]
    prose = [description[0][1:], *description[1:]]
    if any(prose):
        lines.append(".SH DESCRIPTION")
        for block in filter(None, prose):
            lines += [".PP", *(as_they_are(block) if any(line.startswith(" ") for line in block) else map(escaped, block))]
    in_notes = False
    for block in blocks_of(rest.split("\n")):
        said_block = section(block)
        is_prose = said_block[0] == ".PP"
        if is_prose and not in_notes:
            lines.append(".SH NOTES")
        in_notes = is_prose
        lines += said_block
    if others:
        lines += ['.SH "SEE ALSO"', ",\n".join(f".BR {escaped(other)} (1)" for other in others)]
    return "\n".join(lines) + "\n"


def pages(program, version):
    """{page's name: roff} of a program and all its commands."""
    helps = {}

    def add(command):
        helps[command] = help_of(program, command)
        listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", helps[command], re.MULTILINE)
        for word in SUBCOMMAND.findall(listed.group(1)) if listed else []:
            add((*command, word))

    add(())
    base = Path(program).name
    names = {command: "-".join((base, *command)) for command in helps}
    return {names[command]: page(base, command, said, version, [name for key, name in names.items() if key != command])
            for command, said in helps.items()}


def main():
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    program, version, folder = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, roff in pages(program, version).items():
        path = Path(folder) / f"{name}.1.gz"
        path.write_bytes(gzip.compress(roff.encode("utf-8"), compresslevel=9, mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The table of folders and the folders that each may include: include_table.txt.

A row names only folders of earlier rows, so no circle of includes is possible. tests/ is not in the table: a test may
include every folder. Each folder may include itself and kernels/base.
"""

import os
import re

import documents

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "include_table.txt")
GROUND = "kernels/base"
# A header of the public interface is included by its installed name.
PUBLIC = ("millrace/", "worker/include/millrace/")


class BadTable(Exception):
    """A row of the table is wrong; the message names it."""


def parse(text):
    """Returns {folder: set of folders}. Raises BadTable for a row twice, or one that names a later row."""
    table = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        folder, allowed = words[0], words[1:]
        if folder in table:
            raise BadTable(f"line {number}: {folder} has a row already")
        late = [name for name in allowed if name not in table]
        if late:
            raise BadTable(f"line {number}: {folder} may not include {late[0]}: only rows above it")
        table[folder] = {folder, GROUND, *allowed}
    return table


def load():
    with open(TABLE, encoding="utf-8") as file:
        return parse(file.read())


def refusal(table, path, header):
    """Returns why the file may not include the header of this repository, or an empty text."""
    folder = os.path.dirname(path)
    if folder == "tests" or folder.startswith("tests/"):
        return ""
    if header.startswith(PUBLIC[0]):
        header = PUBLIC[1] + header[len(PUBLIC[0]):]
    if folder not in table:
        return f"{folder} has no row in tests/lint/include_table.txt"
    wanted = os.path.dirname(header)
    if wanted in table[folder]:
        return ""
    return f"{folder} may not include {wanted} (tests/lint/include_table.txt)"


def unused(table, includes):
    """Returns [(folder, allowed)] of the table that no include needs, given {folder: set of included folders}."""
    return [(folder, name) for folder, allowed in table.items()
            for name in sorted(allowed - {folder, GROUND} - includes.get(folder, set()))]


def named_in(page, table):
    """Returns the folders of the table that a README names after "May include:", or None if it has no such paragraph."""
    paragraph = re.search(r"\*\*May include:\*\*(.*?)(?:\n\n|\Z)", page, re.DOTALL)
    if not paragraph:
        return None
    return {name.rstrip("/") for name in re.findall(r"`([^`]+)`", paragraph.group(1))} & set(table)


def includers_in(page):
    """Returns the folders that a README names after "Included by:". Each name stands for its sub-folders too."""
    paragraph = re.search(r"\*\*Included by:\*\*(.*?)(?:\n\n|\Z)", page, re.DOTALL)
    names = re.findall(r"`([^`]+/[^`]*)`", paragraph.group(1)) if paragraph else []
    return [whole.replace(" ", "").rstrip("/") for name in names for whole in documents.expand_braces(name)]


def differences(folder, named, includes):
    """Returns the names that no include of the folder needs, and the folders that include it and that no name covers."""
    including = {one for one, wanted in includes.items() if folder in wanted and one != folder and not one.startswith("tests")}
    covers = lambda name, one: one == name or one.startswith(name + "/")
    return sorted([name for name in named if not any(covers(name, one) for one in including)] +
                  [one for one in including if not any(covers(name, one) for name in named)])


def group_of(path):
    """Returns the folder whose files, with those of its sub-folders, share unity units (millrace_unite() in CMakeLists.txt)."""
    folder = os.path.dirname(path)
    match = re.match(r"(kernels|protocol|monitoring|server|switch_agg|(?:worker|tests)/[a-z_]+)(?:/|$)", folder)
    return match.group(1) if match else folder

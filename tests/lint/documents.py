#!/usr/bin/env python3
"""Lint of documents: sizes, columns, dead links, dead file names, and code blocks that must equal an example's file.

    tests/lint/documents.py --update-examples   writes the code blocks of documents anew from the examples that they name

lint.py runs the rules. long_documents.txt is their ratchet: `path kind number` allows a page that many kilobytes (of 1,000,
rounded up), columns (lines that are too long), links (dead ones) or names (dead ones), and may only shrink.
"""

import argparse
import fnmatch
import os
import re
import sys
from dataclasses import dataclass

COLUMNS_MAX = 120
README_BYTES_MAX = 8_000  # the first page
FOLDER_README_BYTES_MAX = 4_000  # one page
DESIGN_BYTES_MAX = 12_000
OTHER_BYTES_MAX = 60_000
# READMEs that are manuals, and their sizes.
MANUALS = {"worker/README.md": 32_000, "server/README.md": 12_500, "switch_agg/README.md": 12_000, "worker/peer/README.md": 12_000, "worker/python/README.md": 12_000,
           "kernels/README.md": 12_000, "tests/bench/papers/README.md": 20_000, "protocol/wire/README.md": 20_000}

SOURCE_SUFFIXES = (".h", ".cc", ".py", ".sh", ".md", ".cmake", ".capnp", ".yml", ".svg", ".txt")
# Names of files that a reader makes, or that a build makes.
MADE_NAMES = ("cases.txt",)
LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
PATH_TOKEN = re.compile(r"\.{0,2}/?[\w*.{},-]+(/[\w*.{},-]+)*/?")
TEST_NAME = re.compile(r"[a-z][a-z0-9_]*_test")
CMAKE_NAME = re.compile(r"\b(?:NAME |function\()(\w+)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$")
ANCHOR = re.compile(r"<a +(?:id|name)=\"([^\"]+)\"")
EXAMPLE = re.compile(r"^<!-- example: (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE_LINES_MAX = 30
EXCERPT = re.compile(r"^ *(?://|#) README: begin\n(.*?)^ *(?://|#) README: end$", re.MULTILINE | re.DOTALL)

RULES = {
    "document-size": f"README.md has at most {README_BYTES_MAX} bytes, a folder's README.md {FOLDER_README_BYTES_MAX}, "
                     f"a DESIGN.md {DESIGN_BYTES_MAX}; manuals are listed in documents.py",
    "document-columns": f"a line of a document has at most {COLUMNS_MAX} columns",
    "dead-link": "a document's link leads to a file, and to a heading of it",
    "dead-name": "a file or test that a document names is in the tree",
    "example": "a code block under <!-- example: FILE --> is that file's part between the lines // README: begin and end, "
               f"of at most {EXAMPLE_LINES_MAX} lines",
    "document-ratchet": "long_documents.txt only shrinks",
}
# kind of a ratchet's line -> the rule that it relaxes
KINDS = {"kilobytes": "document-size", "columns": "document-columns", "links": "dead-link", "names": "dead-name"}


@dataclass(frozen=True)
class Fault:
    path: str
    line: int
    rule: str
    message: str


def size_limit(path):
    if path == "README.md":
        return README_BYTES_MAX
    if path in MANUALS:
        return MANUALS[path]
    return {"README.md": FOLDER_README_BYTES_MAX, "DESIGN.md": DESIGN_BYTES_MAX}.get(os.path.basename(path), OTHER_BYTES_MAX)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def without_fences(text):
    """The text with the lines of code blocks emptied; lines keep their numbers."""
    lines, inside = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            inside = not inside
            lines.append("")
        else:
            lines.append("" if inside else line)
    return "\n".join(lines)


def anchors(text):
    found, counts = set(ANCHOR.findall(text)), {}
    for line in without_fences(text).split("\n"):
        if match := HEADING.match(line):
            name = slug(match.group(1))
            found.add(f"{name}-{counts[name]}" if name in counts else name)
            counts[name] = counts.get(name, 0) + 1
    return found


def folders_of(paths):
    """Every folder of the paths, as "a/b/"."""
    return {path[:at + 1] for path in paths for at in range(len(path)) if path[at] == "/"}


class Tree:
    """The names that documents may use: paths of files, their folders, and tests of CMakeLists.txt; sources are {path: text}."""

    def __init__(self, paths, sources):
        self.paths = set(paths)
        self.folders = folders_of(self.paths)
        self.folder_names = {name for folder in self.folders for name in folder.rstrip("/").split("/")}
        ends = set()
        for path in self.paths | self.folders:
            parts = path.rstrip("/").split("/")
            ends.update("/".join(parts[at:]) for at in range(len(parts)))
        for path, text in sources.items():
            if path.endswith("CMakeLists.txt"):
                ends.update(CMAKE_NAME.findall(text))
        self.ends = ends

    def has(self, path):
        return path in self.paths or path.rstrip("/") + "/" in self.folders

    def knows(self, name):
        """Whether a path of the tree ends with the name: a file, a folder, a file without its suffix, or a pattern (NAME is one)."""
        name = name.rstrip("/").replace("NAME", "*")
        if "*" in name or "{" in name:
            patterns = expand_braces(name)
            return all(any(fnmatch.fnmatch(end, pattern) for end in self.ends) for pattern in patterns)
        return name in self.ends or any(name + suffix in self.ends for suffix in SOURCE_SUFFIXES)


def expand_braces(name):
    match = re.search(r"\{([^{}]*)\}", name)
    if not match:
        return [name]
    return [whole for word in match.group(1).split(",") for whole in expand_braces(name[:match.start()] + word + name[match.end():])]


def is_file_name(token, tree):
    """Whether a code span is meant as a file, folder or test of this tree."""
    if TEST_NAME.fullmatch(token):
        return True
    if not PATH_TOKEN.fullmatch(token) or token in MADE_NAMES or token.startswith(("/", "-", "..")):
        return False
    if any(word.endswith(SOURCE_SUFFIXES) for word in expand_braces(token)) and not token.startswith("."):
        return True
    first = token.split("/", 1)[0]
    return "/" in token and first in tree.folder_names and re.fullmatch(r"[a-z_0-9/*{},]+", token) is not None


def check_links(path, text, texts, tree):
    for match in LINK.finditer(text):
        target = match.group(1)
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        line = text.count("\n", 0, match.start()) + 1
        if not tree.has(file):
            yield Fault(path, line, "dead-link", f"{target}: there is no {file}")
        elif anchor and file in texts and anchor not in anchors(texts[file]):
            yield Fault(path, line, "dead-link", f"{target}: {file} has no heading #{anchor}")


def check_names(path, text, tree):
    for number, line in enumerate(text.split("\n"), 1):
        for match in CODE_SPAN.finditer(line):
            token = match.group(1).partition("#")[0]
            if is_file_name(token, tree) and not tree.knows(token.removeprefix("./")):
                yield Fault(path, number, "dead-name", f"{token} is not in the tree")


def excerpt(source):
    """What a document shows of an example: the marked part, or all of it. None: it has several."""
    parts = EXCERPT.findall(source)
    return source if not parts else parts[0] if len(parts) == 1 else None


def check_examples(path, text, sources):
    for match in EXAMPLE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        source = sources.get(match.group(1))
        if source is None:
            yield Fault(path, line, "example", f"{match.group(1)} is not in the tree")
        elif match.group(2) != excerpt(source):
            yield Fault(path, line, "example", f"the block is not what {match.group(1)} has: run tests/lint/documents.py --update-examples")
        elif (lines := match.group(2).count("\n")) > EXAMPLE_LINES_MAX:
            yield Fault(path, line, "example", f"the part of {match.group(1)} has {lines} lines, the limit is {EXAMPLE_LINES_MAX}")


def faults_of(path, text, texts, tree, sources):
    """The faults of one document, by kind; a document over its ratchet's number has all of that kind told."""
    lines = text.split("\n")
    size = len(text.encode())
    long_lines = [Fault(path, number, "document-columns", f"{len(line)} columns, the limit is {COLUMNS_MAX}")
                  for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX]
    prose = without_fences(text)
    return {
        "kilobytes": [Fault(path, 1, "document-size", f"{size} bytes, the limit is {size_limit(path)}")] if size > size_limit(path) else [],
        "columns": long_lines,
        "links": list(check_links(path, prose, texts, tree)),
        "names": list(check_names(path, prose, tree)),
        "example": list(check_examples(path, text, sources)),
    }


def amount_of(kind, faults, text):
    return -(-len(text.encode()) // 1_000) if kind == "kilobytes" and faults else len(faults)


def check(texts, sources, paths, ratchet):
    """All faults of documents {path: text}; sources are {path: text} of examples, paths those of the whole tree."""
    tree = Tree(paths, sources)
    for path, text in texts.items():
        for kind, faults in faults_of(path, text, texts, tree, sources).items():
            listed = ratchet.get((path, kind), 0)
            now = amount_of(kind, faults, text)
            if now > listed:
                yield from faults
            elif now < listed:
                yield Fault(path, 1, "document-ratchet", f"{kind} is {now} now, long_documents.txt says {listed}: run --update-ratchet")
    for path, kind in ratchet:
        if path not in texts:
            yield Fault(path, 1, "document-ratchet", f"{kind}: the page is gone, run --update-ratchet")


def read_ratchet(text):
    ratchet = {}
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        if len(fields) != 3 or fields[1] not in KINDS:
            raise ValueError(f"long_documents.txt:{number}: want 'path kind number', with a kind of {', '.join(KINDS)}")
        ratchet[(fields[0], fields[1])] = int(fields[2])
    return ratchet


def shrunk_ratchet(texts, sources, paths, ratchet):
    """The ratchet with today's numbers, where those are lower."""
    tree = Tree(paths, sources)
    kept = {}
    for (path, kind), listed in ratchet.items():
        if path in texts:
            text = texts[path]
            now = min(listed, amount_of(kind, faults_of(path, text, texts, tree, sources)[kind], text))
            if now > 0:
                kept[(path, kind)] = now
    return kept


def ratchet_text(head, ratchet):
    return head + "".join(f"{path} {kind} {number}\n" for (path, kind), number in sorted(ratchet.items()))


def with_examples(text, sources):
    def block(match):
        source = sources.get(match.group(1))
        language = "python" if match.group(1).endswith(".py") else "cpp"
        return match.group(0) if source is None else f"<!-- example: {match.group(1)} -->\n```{language}\n{excerpt(source)}```"
    return EXAMPLE.sub(block, text)


def main():
    import lint  # its walk over the tree
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--update-examples", action="store_true", required=True, help="write code blocks from the examples")
    parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    texts = {path: lint.read(os.path.join(root, path)) for path in lint.files_of(root)}
    for path, text in texts.items():
        if path.endswith(".md") and (new := with_examples(text, texts)) != text:
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(new)
            print(f"{path}: written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())

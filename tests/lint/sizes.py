"""Sizes of folders and classes, and columns of comments. ratchet.txt lists what is over today."""

import os
import re
from dataclasses import dataclass

import cpp_text
from ratchet import Over

FOLDER_FILES_MAX = 30
CLASS_METHODS_MAX = 30
CLASS_LINES_MAX = 500
COMMENT_COLUMNS_MAX = 120
SOURCES = (".h", ".cc", ".capnp")
CPP = (".h", ".cc")

RULES = {
    "folder-size": f"a folder has at most {FOLDER_FILES_MAX} source files of its own",
    "class-methods": f"a class declares at most {CLASS_METHODS_MAX} public member functions",
    "class-lines": f"a class's declaration has at most {CLASS_LINES_MAX} lines",
    "comment-columns": f"a comment in C++ ends by column {COMMENT_COLUMNS_MAX}",
}

RECORD = re.compile(r"\b(?<!enum )(class|struct)\s+(?:alignas\s*\([^()]*\)\s*|\[\[[^\]]*\]\]\s*)*([A-Za-z_][\w:]*)(?:<[^;{}]*>)?\s*(?:final\s*)?(?::[^;{}()]*)?\{")
BRACE = re.compile(r"[{}]")
PART = re.compile(r"[{};()]|\b(public|private|protected)\s*:(?!:)")
NO_FUNCTION = re.compile(r"\s*(?:using|typedef|friend|static_assert|enum|class|struct|union|namespace)\b")
ANGLES = re.compile(r"<[^<>;{}]*>")
FUNCTION_HEAD = re.compile(r"(?:operator\s*(?:\(\s*\)|\S+?)|~?\w+)\s*\(")


@dataclass(frozen=True)
class Record:
    """A class or struct with its body: its name, its first line, its lines, and its public member functions."""

    name: str
    line: int
    lines: int
    methods: int


def _end_of_body(code, start):
    depth = 1
    for match in BRACE.finditer(code, start):
        depth += 1 if match.group(0) == "{" else -1
        if depth == 0:
            return match.start()
    return len(code)


def is_function(head):
    """Whether the head of a member declares a function: a name and a parenthesis, and no `=` before it."""
    head = head.split("{", 1)[0]
    if "(" not in head or NO_FUNCTION.match(head):
        return False
    head = re.sub(r"\[\[[^\]]*\]\]|\balignas\s*\([^()]*\)|\btemplate\b", " ", head)
    head = re.sub(r"\boperator\s*[^\s\w(]+", "operator_", head)
    while (shorter := ANGLES.sub(" ", head)) != head:
        head = shorter
    named = FUNCTION_HEAD.search(head)
    return named is not None and "=" not in head[:named.start()] and not NO_FUNCTION.match(head) and not re.search(r"=\s*delete\s*$", head)


def public_functions(body, kind):
    """The number of public member functions that a body declares."""
    count, parens, start, public = 0, 0, 0, kind == "struct"
    at = 0
    while match := PART.search(body, at):
        at = match.end()
        token = match.group(0)
        if token in "()":
            parens += 1 if token == "(" else -1
        elif parens > 0:
            continue
        elif token == "{":
            head = body[start:match.start()]
            at = min(_end_of_body(body, at) + 1, len(body))
            # A braced initializer goes on: `int x{0};`, `C() : x_{0}, y_{1} {}`.
            if is_function(head) and not re.match(r"\s*[,{]", body[at:at + 80]):
                count += public
                start = at
        elif token == ";":
            count += public and is_function(body[start:match.start()])
            start = at
        elif token not in "}":
            public, start = match.group(1) == "public", at
    return count


def records(text):
    """The classes and structs of a file with a body, those inside of others too."""
    code = cpp_text.blank_comments_and_literals(text)
    for match in RECORD.finditer(code):
        end = _end_of_body(code, match.end())
        body = code[match.end():end]
        lines = body.count("\n") + 1
        methods = public_functions(body, match.group(1)) if body.count("(") > CLASS_METHODS_MAX else 0
        yield Record(match.group(2), code.count("\n", 0, match.start()) + 1, lines, methods)


def long_comments(text):
    """(line, message) of every line whose comment ends behind the last column."""
    if not re.search(rf"[^\n]{{{COMMENT_COLUMNS_MAX + 1}}}", text):
        return
    code = cpp_text.blank_comments_and_literals(text).split("\n")
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > COMMENT_COLUMNS_MAX and len(code[number - 1].rstrip()) < len(line):
            yield number, f"{len(line)} columns, the limit is {COMMENT_COLUMNS_MAX}"


def check(texts):
    """{(place, rule): Over} of all files; texts is {path: text}. The place of a class is `path:Class`."""
    found, folders = {}, {}
    for path, text in texts.items():
        if path.endswith(SOURCES):
            folders.setdefault(os.path.dirname(path), []).append(path)
        if not path.endswith(CPP):
            continue
        if columns := [(path, line, message) for line, message in long_comments(text)]:
            found[(path, "comment-columns")] = Over(len(columns), columns)
        for record in records(text):
            for rule, amount, limit in (("class-methods", record.methods, CLASS_METHODS_MAX), ("class-lines", record.lines, CLASS_LINES_MAX)):
                if amount > limit:
                    found[(f"{path}:{record.name}", rule)] = Over(amount, [(path, record.line, f"{record.name} has {amount}, the limit is {limit}")])
    for folder, paths in folders.items():
        if len(paths) > FOLDER_FILES_MAX:
            message = f"{folder} has {len(paths)} source files, the limit is {FOLDER_FILES_MAX}: give a part of them a folder"
            found[(folder + "/", "folder-size")] = Over(len(paths), [(min(paths), 1, message)])
    return found

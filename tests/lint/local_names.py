"""Finds the names that a C++ source file keeps to itself: those in unnamed namespaces and in Highway's, static ones,
and aliases.

A unity build compiles several files of a group of folders as one unit, so such a name must be unique within its group. Like cpp_text, this
is not a parser: it knows braces, parentheses and the heads of declarations.
"""

import re
from dataclasses import dataclass

import cpp_text
import include_table

_RECORD = re.compile(r"(?:enum\s+(?:class\s+|struct\s+)?|struct\s+|class\s+|union\s+)(?:alignas\([^)]*\)\s*)*(\w+)")
# A namespace of Highway is of one instruction set: its names are the file's own, too.
_UNNAMED = re.compile(r"(?:^|\s)namespace\s*(?:HWY_NAMESPACE\s*)?$")
_NAMED = re.compile(r"\bnamespace\s+[\w:]+\s*$")
_STATIC = re.compile(r"\s*(?:template\s*<[^{;]*>\s*)?static\b")
_ALIAS = re.compile(r"using\s+(\w+)\s*=\s*(.*)", re.DOTALL)
_NO_NAME = re.compile(r"(?:using|static_assert|namespace|friend|extern)\b")
_ATTRIBUTES = re.compile(r"^(?:\s|\[\[[^\]]*\]\]|alignas\([^)]*\))+")
_CALLED = re.compile(r"((?:\w+::)*)(operator\s*[^\s(]+|\w+)\s*\(")
_LAST_WORD = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$")
_ARGUMENTS = re.compile(r"(?<!operator)(?<!operator<)<[^<>;{}]*>")
_TEST = re.compile(r"(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_SUITE|INSTANTIATE_TEST_SUITE_P|RC_GTEST_PROP)\s*\(\s*(\w+)\s*,\s*(\w+)")
# A type's printer for GoogleTest: an overload of a name that is given.
_GIVEN = {"PrintTo"}


@dataclass(frozen=True)
class LocalName:
    """A name, the 1-based line of its declaration, and for an alias what it stands for: equal aliases may meet in a unit."""

    name: str
    line: int
    alias: str = ""


def _declared(head):
    """The name that a declaration's head declares and its alias' meaning, or None."""
    head = _ATTRIBUTES.sub("", cpp_text._strip_template(head.strip()))
    test = _TEST.match(head)
    if test:
        return f"{test.group(1)}.{test.group(2)}", ""
    alias = _ALIAS.match(head)
    if alias:
        return alias.group(1), re.sub(r"\s+", " ", alias.group(2).strip())
    if not head or _NO_NAME.match(head):
        return None
    record = _RECORD.match(head)
    if record and cpp_text._is_record_or_namespace(head):
        return record.group(1), ""
    head = head.split("{", 1)[0].strip()
    while _ARGUMENTS.search(head):
        head = _ARGUMENTS.sub("", head)
    before_value = head.split("=", 1)[0].strip()
    called = _CALLED.search(head)
    variable = _LAST_WORD.search(before_value)
    if called and (before_value == head or called.start(2) < len(before_value)):
        return None if called.group(1) else (called.group(2), "")
    return (variable.group(1), "") if variable else None


def _scope_of(head, scopes):
    """What an opening brace after `head` opens."""
    if any(scope in ("record", "body") for scope in scopes):
        return "body"
    if _UNNAMED.search(head):
        return "unnamed"
    if _NAMED.search(head):
        return "named"
    if cpp_text._is_record_or_namespace(head):
        return "record"
    return "body" if "(" in head and not re.search(r"=\s*$", head) else "value"


class _Scanner:
    def __init__(self, text):
        code = cpp_text.blank_comments_and_literals(text)
        self._code = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), code, flags=re.MULTILINE)
        self._scopes = []
        self._start = 0
        self.found = []

    def _declare(self, end):
        head = self._code[self._start:end]
        local = self._scopes and self._scopes[-1] == "unnamed"
        at_namespace_level = all(scope in ("named", "unnamed") for scope in self._scopes)
        if not local and not (at_namespace_level and (_STATIC.match(head) or _ALIAS.match(head.strip()))):
            return
        declared = _declared(head)
        if declared and declared[0] not in _GIVEN:
            first = self._start + len(head) - len(head.lstrip())
            self.found.append(LocalName(declared[0], self._code.count("\n", 0, first) + 1, declared[1]))

    def _open(self, at):
        scope = "value" if self._scopes and self._scopes[-1] == "value" else _scope_of(self._code[self._start:at], self._scopes)
        if scope in ("record", "body"):
            self._declare(at)
        self._scopes.append(scope)
        if scope != "value":
            self._start = at + 1

    def scan(self):
        parens = 0
        for at, char in enumerate(self._code):
            if char == "(":
                parens += 1
            elif char == ")":
                parens = max(0, parens - 1)
            elif parens > 0:
                continue
            elif char == ";":
                self._declare(at)
                self._start = at + 1
            elif char == "{":
                self._open(at)
            elif char == "}" and self._scopes and self._scopes.pop() != "value":
                self._start = at + 1
        return self.found


def local_names(text):
    """[LocalName] of a source file, in order."""
    return _Scanner(text).scan()


def clashes(names_of_files):
    """Returns [(path, LocalName, path of the first)] of names that two files of one group keep to themselves; {path: [LocalName]}."""
    first = {}
    found = []
    for path in sorted(names_of_files):
        folder = include_table.group_of(path)
        for name in names_of_files[path]:
            known = first.setdefault((folder, name.name), (path, name))
            if known[0] != path and not (name.alias and name.alias == known[1].alias):
                found.append((path, name, known[0]))
    return found

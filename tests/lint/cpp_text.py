"""Reads C++ text well enough for lint: blanks out comments and literals, finds function bodies.

Not a parser. It knows braces, parentheses and the heads of blocks; where a macro hides a brace it may miss a function,
and it never invents one.
"""

import functools
import re
from dataclasses import dataclass

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/'  # comments
    r'|R"(?P<delimiter>[^ ()\\\t\n]{0,16})\(.*?\)(?P=delimiter)"'  # raw strings
    r'|"(?:\\.|[^"\\\n])*"'  # strings
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",  # characters; not the separator of 1'000
    re.DOTALL,
)


@functools.lru_cache(maxsize=None)
def token_spans(text):
    """(start, end, whether it is a comment) of every comment and literal."""
    return tuple((*match.span(), match.group(0).startswith(("//", "/*"))) for match in TOKEN.finditer(text))


@functools.lru_cache(maxsize=None)
def blank_comments_and_literals(text, keep_strings=False):
    """The same text, same length and lines, with comments and the insides of literals as spaces."""
    out, at = [], 0
    for start, end, comment in token_spans(text):
        if not comment and keep_strings:
            continue
        inside = 0 if comment else 1
        out += [text[at:start + inside], _spaces(text[start + inside:end - inside])]
        at = end - inside
    return "".join(out) + text[at:]


def _spaces(text):
    return "\n".join(" " * len(line) for line in text.split("\n"))


def keep(text, spans):
    """The same text, same length and lines, with all but the spans as spaces; spans are in order and apart."""
    out = []
    end = 0
    for start, stop in spans:
        out += [_spaces(text[end:start]), text[start:stop]]
        end = stop
    return "".join(out) + _spaces(text[end:])


def comments_and_literals(text):
    """What blank_comments_and_literals() blanks: the code is spaces."""
    return keep(text, ((start, end) for start, end, _ in token_spans(text)))


@dataclass(frozen=True)
class Function:
    """A function with a body: 1-based lines of its head's first line and of its closing brace."""

    name: str
    first_line: int
    last_line: int

    @property
    def lines(self):
        return self.last_line - self.first_line + 1


_NOT_A_FUNCTION = re.compile(r"^\s*(?:inline\s+)?(?:namespace|class|struct|enum|union|extern\s*\")\b")
_BEFORE_HEAD = re.compile(r"(?:\s|(?:public|private|protected)\s*:(?!:))*")
_TEMPLATE_HEAD = re.compile(r"^\s*template\s*<")
_INITIALIZER_LIST = re.compile(r"\)\s*(?:noexcept\s*(?:\([^()]*\)\s*)?)?:(?!:)")


def _strip_template(head):
    while _TEMPLATE_HEAD.match(head):
        depth = 0
        for at in range(head.index("<"), len(head)):
            depth += {"<": 1, ">": -1}.get(head[at], 0)
            if depth == 0:
                head = head[at + 1:]
                break
        else:
            return head
    return head


def _is_record_or_namespace(head):
    head = _strip_template(head)
    if not _NOT_A_FUNCTION.match(head):
        return False
    # `struct Foo f(int x) {` is a function; `struct alignas(64) Foo {` is not.
    return not re.search(r"\)\s*(?:const|noexcept|override)?\s*$", head)


def _name_of(head):
    head = _strip_template(head)
    test = re.search(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP)\s*\(\s*(\w+)\s*,\s*(\w+)", head)
    if test:
        return test.group(1) + "." + test.group(2)
    named = re.search(r"((?:[\w:~<>]+::)?(?:operator\s*[^\s(]+|~?\w+))\s*\(", head)
    return re.sub(r"\s+", "", named.group(1)) if named else "unnamed"


def functions(text):
    """Every function body outside other function bodies, in order. Lambdas belong to the function around them."""
    code = blank_comments_and_literals(text)
    # Preprocessor lines (with their continuations) may hold unbalanced braces.
    code = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), code, flags=re.MULTILINE)
    found = []
    stack = []  # one entry an open brace: None, or (name, first line) of a function
    parens = 0
    head_start = 0
    line = 1
    for at, char in enumerate(code):
        if char == "\n":
            line += 1
        elif char == "(":
            parens += 1
        elif char == ")":
            parens = max(0, parens - 1)
        elif parens > 0:
            continue
        elif char == ";":
            head_start = at + 1
        elif char == "{":
            stack.append(_open(code[head_start:at], code, head_start, stack))
            if stack[-1] != "value":
                head_start = at + 1
        elif char == "}":
            entry = stack.pop() if stack else None
            if isinstance(entry, tuple):
                found.append(Function(entry[0], entry[1], line))
            if entry != "value":
                head_start = at + 1
    return found


def _open(head, code, head_start, stack):
    """What an opening brace starts: a function (name, line), "value" (a braced initializer in a head) or None."""
    if any(isinstance(entry, tuple) for entry in stack) or any(entry == "value" for entry in stack):
        return None if not any(entry == "value" for entry in stack) else "value"
    if "(" not in head or _is_record_or_namespace(head):
        return None
    if re.search(r"=\s*$", head) or (_INITIALIZER_LIST.search(head) and re.search(r"[\w>]\s*$", head)):
        return "value"
    first = head_start + _BEFORE_HEAD.match(head).end()
    return (_name_of(head), code.count("\n", 0, first) + 1)

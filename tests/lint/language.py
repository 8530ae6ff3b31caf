"""Language: banned words in comments, literals, documents and names of tests; long sentences; long names of tests.

The words are those of banned_words.txt, the terms those of protocol/GLOSSARY.md. What a document has between backticks is code, and
a literal without a blank is a key. ratchet.txt lists what is over today.
"""

import bisect
import functools
import os
import re
from dataclasses import dataclass

import citations
import cpp_text
import documents
from ratchet import Over

SENTENCE_WORDS_MAX = 25
TEST_NAME_MAX = 60

RULES = {
    "language": "no banned word or pattern in comments, literals and documents (tests/lint/banned_words.txt)",
    "sentence": f"a sentence in a comment or a document has at most {SENTENCE_WORDS_MAX} words",
    "test-name": f"a test's name has at most {TEST_NAME_MAX} characters, and no banned word",
}

CPP = (".h", ".cc")
HASH_COMMENTS = (".sh", ".cmake", ".capnp", ".yml", ".yaml", "CMakeLists.txt")
BETWEEN = "\n\0\n"  # between blocks: no pattern's blank matches it
COMMENT_HEAD = re.compile(r"^(?://+[!<]?|/\*+|\*+/?|#+!?)[ \t]?|\*/$")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s|^\s*\||^\s*$|^#{1,6} |^\s*>")
TABLE_RULE = re.compile(r"^[\s|:-]+$")
CODE_SPAN = re.compile(r"`[^`\n]*`")
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!cf)(?<!vs)[.!?][\"')\]]*(?=\s|$)")
WORD = re.compile(r"\S*\w\S*")
GTEST = re.compile(r"^[ \t]*(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)\s*\(\s*\w+\s*,\s*(\w+)", re.MULTILINE)
NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
UNITTEST = re.compile(r"^[ \t]+def (test_\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """Prose that belongs together: its lines, and the number of each. A literal is no place for the rule `sentence`."""

    numbers: list
    lines: list
    literal: bool = False


@dataclass(frozen=True)
class Banned:
    pattern: str
    instead: str


def read_banned(text):
    """The lines `pattern<TAB>what to write instead` of banned_words.txt; a blank in a pattern is any white space."""
    banned = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, tab, instead = line.partition("\t")
        if not tab or not instead.strip() or pattern != pattern.lower():
            raise ValueError(f"banned_words.txt:{number}: want 'pattern<TAB>what to write instead', the pattern in lower case")
        banned.append(Banned(pattern, instead.strip()))
    return tuple(banned)


@functools.lru_cache(maxsize=8)
def compiled(banned):
    """One expression for all patterns, and one for each."""
    parts = [entry.pattern.replace(" ", r"\s+") for entry in banned]
    one = re.compile(rf"\b(?:{'|'.join(parts)})\b")
    return one, [re.compile(rf"(?:{part})\b") for part in parts]


def _hash_spans(text):
    return [(*match.span(), True) for match in re.finditer(r"(?:^|(?<=\s))#[^\n]*", text)]


def _python_spans(text):
    return [(start, end, text[start] == "#") for start, end in citations.python_spans(text)]


def _blocks_of_spans(text, spans):
    """Blocks of comments and literals: those that only white space and at most one line's end part are one block."""
    starts = [0] + [match.end() for match in re.finditer("\n", text)]
    blocks, end, was_comment = [], None, None
    for start, stop, comment in spans:
        token = text[start:stop]
        if not comment and (" " not in token or token[:1] == "'"):
            continue
        first = bisect.bisect_right(starts, start)
        between = text[end:start] if end is not None else "x"
        lines = token.split("\n")
        if comment:
            lines = [COMMENT_HEAD.sub("", line.strip()) for line in lines]
        if not between.strip() and between.count("\n") <= 1 and comment == was_comment:
            blocks[-1].numbers.extend(range(first, first + len(lines)))
            blocks[-1].lines.extend(lines)
        else:
            blocks.append(Block(list(range(first, first + len(lines))), lines, not comment))
        end, was_comment = stop, comment
    return blocks


def _blocks_of_document(text):
    """Paragraphs, items, headings and the cells of tables; code between backticks is one word."""
    blocks, fresh = [], True
    for number, line in enumerate(CODE_SPAN.sub("`code`", documents.without_fences(text)).split("\n"), 1):
        if ITEM.match(line):
            fresh = True
        if not line.strip() or TABLE_RULE.match(line):
            fresh = True
        elif line.lstrip().startswith("|"):
            blocks += [Block([number], [cell]) for cell in line.strip().strip("|").split("|") if cell.strip()]
        elif fresh:
            blocks.append(Block([number], [line]))
            fresh = line.startswith("#")
        else:
            blocks[-1].numbers.append(number)
            blocks[-1].lines.append(line)
    return blocks


def blocks_of(path, text):
    if path.endswith(CPP):
        return _blocks_of_spans(text, cpp_text.token_spans(text))
    if path.endswith(".py"):
        return _blocks_of_spans(text, _python_spans(text))
    if path.endswith(".md"):
        return _blocks_of_document(text)
    if path.endswith(HASH_COMMENTS):
        return _blocks_of_spans(text, _hash_spans(text))
    return []


def banned_words(blocks, banned):
    """(line, message) of every banned word."""
    one, each = compiled(banned)
    text = BETWEEN.join(_joined(block) for block in blocks).lower()
    numbers = None
    for match in one.finditer(text):
        if numbers is None:
            numbers = [number for block in blocks for number in block.numbers + [0]]
            ends = [found.start() for found in re.finditer("\n", text)]
        line = numbers[bisect.bisect_left(ends, match.start())]
        entry = next(entry for entry, pattern in zip(banned, each) if pattern.match(text, match.start()))
        yield line, f"'{' '.join(match.group(0).split())}': write {entry.instead}"


def _joined(block):
    return "\n".join(block.lines)


def long_sentences(blocks):
    """(line, message) of every sentence over the limit."""
    for block in blocks:
        if block.literal or sum(line.count(" ") for line in block.lines) < SENTENCE_WORDS_MAX - len(block.lines):
            continue
        for number, count in _sentences(block):
            if count > SENTENCE_WORDS_MAX:
                yield number, f"a sentence of {count} words, the limit is {SENTENCE_WORDS_MAX}"


def _sentences(block):
    """(line, words) of each sentence. An empty line and an item's head end one as a full stop does."""
    count, first = 0, block.numbers[0]
    for number, line in zip(block.numbers, block.lines):
        if ITEM.match(line):
            yield first, count
            count = 0
        at = 0
        for end in SENTENCE_END.finditer(line):
            count, first = count + len(WORD.findall(line, at, end.end())), first if count else number
            yield first, count
            count, at = 0, end.end()
        rest = len(WORD.findall(line, at))
        count, first = count + rest, first if count else number
    yield first, count


def test_names(path, text, banned):
    """(line, message) of every test's name that is over the limit, or has a banned word between its capitals."""
    one, _ = compiled(banned)
    pattern = GTEST if path.endswith((".cc", ".cu")) else UNITTEST if path.endswith(".py") else None
    for match in pattern.finditer(text) if pattern else ():
        name, line = match.group(1), text.count("\n", 0, match.start(1)) + 1
        if len(name) > TEST_NAME_MAX:
            yield line, f"{name} has {len(name)} characters, the limit is {TEST_NAME_MAX}"
        word = one.search(" ".join(NAME_WORD.findall(name)).lower())
        if word:
            yield line, f"{name} has '{word.group(0)}' (banned_words.txt)"


def check(texts, banned):
    """{(path, rule): Over} of all files; texts is {path: text}."""
    found = {}
    for path, text in texts.items():
        blocks = blocks_of(path, text)
        faults = {"language": banned_words(blocks, banned), "sentence": long_sentences(blocks),
                  "test-name": test_names(path, text, banned) if path.startswith("tests" + os.sep) else ()}
        for rule, ones in faults.items():
            ones = [(path, line, message) for line, message in ones]
            if ones:
                found[(path, rule)] = Over(len(ones), ones)
    return found

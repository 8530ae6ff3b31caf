"""Checks citations of publications: `[SparCML19, 5.3]`, a key that kernels/REFERENCES.md has, in comments, literals and documents.

A citation in another form (a file's name, "et al.", "RFC 1071", "RedSync's algorithm 4") names no edition, and nothing finds it when an
entry changes. Only what reads as prose is looked at: code has indices in brackets too.
"""

import functools
import io
import re
import tokenize

import cpp_text

REFERENCES = "kernels/REFERENCES.md"
ENTRY = re.compile(r'^- <a id="(\w+)"></a>\*\*\[\1\]\*\* ', re.MULTILINE)
ITEM = re.compile(r"^- .*", re.MULTILINE)

# A key: at least three letters and the digits of a year or a standard. Before it no operand (`bytes[Word12]`), behind it the place or the
# end, and not the address of a link.
KEY = re.compile(r"(?<![\w\])>}])\[([A-Za-z]{3,}\d{2,4})(?=[\],])(?!\]\()")
PLACE = r"(?:sections?|appendix|appendices|algorithms?|tables?|figures?|equations?|lemmas?|theorems?|remarks?)"
OTHER_FORMS = (
    re.compile(rf"\b[\w-]+\.(?:txt|pdf)\b(?=(?:'s)?,?\s+(?:{PLACE}\b|\d+(?:\.\d+)+|\(\d+\)))"),
    re.compile(r"\bet al\b"),
    re.compile(r"\bRFC \d+"),
    re.compile(rf"\b(?:SparCML|Ok-Topk|RedSync|GSpar|DeepReduce)(?:'s|,)? (?:{PLACE} (?:\d|[A-D]\b)|\d+(?:\.\d+)+(?! ?[×%x]|\w))"),
)


@functools.lru_cache(maxsize=None)
def python_spans(text):
    """(start, end) of every comment and literal of a Python program."""
    return tuple(_python_spans(text))


def _python_spans(text):
    starts = [0]
    for line in io.StringIO(text):
        starts.append(starts[-1] + len(line))
    literals = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in literals:
                yield starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]
    except (tokenize.TokenError, SyntaxError):
        return  # half a program has no more prose to find


def prose_of(path, text):
    """The text of a file, same length and lines, with what is neither a comment, nor a literal, nor a document as spaces."""
    if path.endswith((".h", ".cc")):
        return cpp_text.comments_and_literals(text)
    if path.endswith(".py"):
        return cpp_text.keep(text, python_spans(text))
    if path.endswith(".md"):
        return text
    return cpp_text.keep(text, [match.span() for match in re.finditer(r"(?:^|(?<=\s))#[^\n]*", text)])


def entries_of(references):
    """{key: line} of the entries of kernels/REFERENCES.md."""
    return {match.group(1): references.count("\n", 0, match.start()) + 1 for match in ENTRY.finditer(references)}


def check(texts):
    """(path, line, sentence) of each fault; texts is {path: text}."""
    references = texts.get(REFERENCES, "")
    entries = entries_of(references)
    spelled = {key.lower(): key for key in entries}
    names = sorted({re.sub(r"\d+$", "", key.lower()) for key in entries})
    other_forms = OTHER_FORMS + ((re.compile(rf"\b(?:{'|'.join(names)})\.(?:txt|pdf)\b"),) if names else ())
    cited = set()
    for path, text in texts.items():
        if path == REFERENCES:
            continue
        prose = prose_of(path, text)
        for match in KEY.finditer(prose):
            key = match.group(1)
            line = prose.count("\n", 0, match.start()) + 1
            cited.add(key)
            if key.lower() in spelled and key not in entries:
                yield path, line, f"[{key}]: the key is {spelled[key.lower()]}"
            elif key not in entries and key[0].isupper():
                yield path, line, f"[{key}]: {REFERENCES} has no such entry: add one, or cite an entry that it has"
        found = {match.start(): match.group(0) for pattern in other_forms for match in pattern.finditer(prose)}
        for start, form in sorted(found.items()):
            line = prose.count("\n", 0, start) + 1
            yield path, line, f"'{form}': cite a publication by its key, as [SparCML19, 5.3] ({REFERENCES})"
    yield from check_references(references, entries, cited)


def check_references(references, entries, cited):
    seen = set()
    for match in ITEM.finditer(references):
        line = references.count("\n", 0, match.start()) + 1
        entry = ENTRY.match(references, match.start())
        if entry is None:
            yield REFERENCES, line, 'an entry begins with its key, as in \'- <a id="SparCML19"></a>**[SparCML19]** \''
        elif entry.group(1) in seen:
            yield REFERENCES, line, f"[{entry.group(1)}]: a second entry of this key"
        else:
            seen.add(entry.group(1))
    for key, line in entries.items():
        if key not in cited:
            yield REFERENCES, line, f"[{key}]: nothing cites it: remove the entry, or cite it where its method is"

"""Citations: of the normative rules (R9c, S6.8) by their anchors, and of documents by their paths.

An anchor is a line of protocol/ROUNDS.md (R) or protocol/SWITCH.md (S) that begins `**R9c settle-evicted.**`. Anything that looks
like an anchor, in a comment or a document, is a citation. Code is no comment, and what a document has between backticks is code:
there S1 may be a name, and R2 a number.
"""

import io
import os
import re
import tokenize

import cpp_text

RULE_DOCUMENTS = {"protocol/ROUNDS.md": "R", "protocol/SWITCH.md": "S"}
FORM = r"(?:R[0-9]+[a-z]?|S[0-9]+(?:\.[0-9]+)*)"
ANCHOR = re.compile(rf"^\*\*({FORM}) [a-z0-9-]+\.\*\*", re.MULTILINE)
CITATION = re.compile(rf"(?<![\w$./-]){FORM}(?![\w-])")
# How rules were cited before they had anchors: [9c], "SWITCH.md 6.8", "ROUNDS.md, rule 4", a folder beside the repository.
FORMER = re.compile(r"(?<![\w\])])\[[0-9]{1,2}[a-e]\]|\b(?:ROUNDS|SWITCH)(?:\.md)?,? (?:rules? |sections? )?[0-9]|\bshared/(?:ROUNDS|SWITCH)\b")
DOCUMENT = re.compile(r"(?<![\w/.:*-])((?:\.{1,2}/)*\w[\w-]*(?:/\w[\w-]*)*\.md)\b(?!/)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`[^`\n]*`")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def words_of_cpp(text, literals):
    """The same text, with all but comments (and string literals, if asked) as spaces."""
    words = []
    at = 0
    for token in cpp_text.TOKEN.finditer(text):
        words.append(re.sub(r"[^\n]", " ", text[at:token.start()]))
        kept = literals or token.group(0).startswith(("//", "/*"))
        words.append(token.group(0) if kept else blank(token))
        at = token.end()
    return "".join(words) + re.sub(r"[^\n]", " ", text[at:])


def words_of_python(text):
    """The same lines, with all but comments and docstrings as spaces."""
    lines = [" " * len(line) for line in text.split("\n")]
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and begins):
            last = token.start[0] + token.string.count("\n")
            for number, part in zip(range(token.start[0], last + 1), token.string.split("\n")):
                lines[number - 1] = (" " * token.start[1] if number == token.start[0] else "") + part
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return "\n".join(lines)


def words_of(path, text):
    """What of a file is prose: where citations stand. Same lines as the text."""
    if path.endswith((".h", ".cc")):
        return words_of_cpp(text, literals=path.startswith("tests/models/"))  # the models print the anchors of their rules
    if path.endswith(".md"):
        return CODE_SPAN.sub(blank, FENCE.sub(blank, text))
    if path.endswith(".py"):
        return words_of_python(text)
    return re.sub(r"^[^#\n]*", lambda match: " " * len(match.group(0)), text, flags=re.MULTILINE)


def anchors_of(texts):
    """anchor -> (path, line) of its first definition; and those that are defined again, as (path, line, anchor)."""
    anchors, again = {}, []
    for path, letter in RULE_DOCUMENTS.items():
        text = texts.get(path, "")
        for match in ANCHOR.finditer(text):
            place = (path, text.count("\n", 0, match.start()) + 1)
            if match.group(1) in anchors or not match.group(1).startswith(letter):
                again.append((*place, match.group(1)))
            else:
                anchors[match.group(1)] = place
    return anchors, again


def unknown_citations(texts):
    """(path, line, what is wrong) of every citation that has no anchor, and of those in a form of before."""
    anchors, again = anchors_of(texts)
    for path, line, anchor in again:
        yield path, line, f"{anchor} is defined twice, or in the other document"
    for path, text in texts.items():
        if not CITATION.search(text) and not FORMER.search(text):
            continue  # most files; taking a file apart takes time
        words = words_of(path, text)
        for match in CITATION.finditer(words):
            if match.group(0) not in anchors:
                yield path, words.count("\n", 0, match.start()) + 1, f"{match.group(0)} is no rule of protocol/ROUNDS.md or SWITCH.md"
        if path.endswith(".md"):
            continue
        for match in FORMER.finditer(words):
            yield path, words.count("\n", 0, match.start()) + 1, f"'{match.group(0)}': cite a rule by its anchor, as R9c or S6.8"


def dead_paths(texts):
    """(path, line, what is wrong) of every document that a comment names and that is not there (documents.py: of those in documents).

    A path with a folder is one from the file's own folder, or from the top. A bare name is any document of that name.
    """
    documents = {path for path in texts if path.endswith(".md")}
    names = {os.path.basename(path) for path in documents}
    for path, text in texts.items():
        if path.endswith(".md") or not DOCUMENT.search(text):
            continue
        words = words_of(path, text)
        for match in DOCUMENT.finditer(words):
            named = match.group(1)
            here = os.path.normpath(os.path.join(os.path.dirname(path), named))
            found = named in names if "/" not in named else here in documents or os.path.normpath(named) in documents
            if not found:
                yield path, words.count("\n", 0, match.start()) + 1, f"{named} is not in this repository"

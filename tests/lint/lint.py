#!/usr/bin/env python3
"""Millrace's own lint: what DESIGN.md and STYLE.md settle and no compiler checks. Standard library only.

    tests/lint/lint.py                    lints the tree around it; exits 1 with one line a finding
    tests/lint/lint.py --update-ratchet   rewrites ratchet.txt, long_functions.txt and long_documents.txt: adds nothing, raises no amount;
                                          files that git sees moved since the last commit keep their amounts
    tests/lint/lint.py --begin-ratchet R  adds today's amounts of a new rule R to ratchet.txt, which has no line of it yet
    tests/lint/lint.py --list-rules       the rules, a line each

Findings read `path:line: rule: sentence`. An exception is a line of allowed.txt, with its reason.
"""

import argparse
import fnmatch
import os
import re
import sys
from dataclasses import dataclass

import citations
import cpp_text
import documents
import include_table
import language
import local_names
import ratchet as ratchets
import rule_anchors
import sizes

FOLDERS = ("kernels", "protocol", "monitoring", "server", "worker", "switch_agg", "tests", "deploy")
CPP = (".h", ".cc")
TEXT = CPP + (".py", ".sh", ".txt", ".cmake", ".md", ".capnp", ".json", ".yaml", ".yml", ".in")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
COMMENT_COLUMNS_MAX = 130  # clang-format breaks code at 120; comments it leaves alone
PYTHON_PACKAGE = "worker/python/millrace/"  # users read it

# Folders where each file is a program of its own: their files never meet in a unit.
# A Highway file is a unit by itself.
ONE_UNIT = "hwy/foreach_target.h"
PROGRAM_FOLDERS = ("tests/bench", "tests/fuzz", "tests/integration", "tests/integration/punisher", "tests/integration/consumer",
                   "worker/examples")

INCLUDES = include_table.load()

# third-party header (pattern of the whole include) -> folders where it may be included.
THIRD_PARTY = (
    (r"(capnp|kj)/.*", ("protocol/messages/", "tests/protocol/", "tests/support/")),
    (r"zmq\.h(pp)?", ("protocol/transport/", "tests/protocol/", "tests/support/")),
    (r"sodium\.h|intel-ipsec-mb\.h|openssl/.*", ("protocol/datagram/", "protocol/keys/", "protocol/table/", "monitoring/http/secure/", "tests/protocol/")),
    (r"sqlite3\.h", ("protocol/table/", "tests/protocol/")),
    (r"curl/.*", ("protocol/table/",)),
    (r"prometheus/.*|civetweb.*", ("monitoring/", "tests/monitoring/")),
    (r"hwy/.*|xxhash\.h|xxh_x86dispatch\.h|Random123/.*", ("kernels/", "tests/kernels/", "tests/support/")),
    (r"utf8cpp/.*", ("kernels/base/",)),
    (r"roaring/.*|streamvbyte\.h", ("kernels/codec/index/",)),
    (r"libdeflate\.h", ("kernels/codec/value/",)),
    (r"((oneapi/)?tbb/.*)", ("kernels/", "server/", "worker/", "switch_agg/", "tests/")),
    (r"nlohmann/.*", ("server/page/", "worker/doctor/", "worker/program/", "worker/launch/", "worker/cluster_status/", "worker/timeline/", "worker/export/", "worker/training/", "worker/cli/",
                      "worker/bench/", "monitoring/", "protocol/table/", "server/access/", "server/process/", "switch_agg/process/",
                      "switch_agg/bench/", "tests/")),
    (r"CLI/.*", ("monitoring/command_line/", "worker/program/", "worker/training/", "worker/cli/", "worker/bench/", "server/process/",
                 "switch_agg/process/", "switch_agg/bench/", "tests/bench/", "tests/monitoring/", "tests/worker/config/",
                 "tests/worker/program/")),
    (r"fmt/.*", ("monitoring/", "server/", "protocol/", "switch_agg/", "kernels/", "worker/", "tests/")),
    (r"(zlib|zstd)\.h", ("worker/training/data/", "worker/bench/kernels/", "tests/worker/", "tests/kernels/")),
    (r"(bzlib|lzma)\.h", ("worker/training/data/", "tests/worker/")),
    (r"pybind11/.*", ("worker/python/",)),
    (r"mpi\.h", ("worker/peer/transport/", "tests/worker/peer/")),
    (r"rte_.*", ("switch_agg/packet_io/dpdk/",)),
    (r"cuda.*|cub/.*|thrust/.*", ("kernels/cuda/", "tests/kernels/cuda/")),
    (r"(gtest|gmock|rapidcheck|benchmark)/.*|rapidcheck\.h", ("tests/",)),
)
SYSTEM = re.compile(
    r"(sys|netinet|arpa|net|linux|bits|asm)/.*\.h"
    r"|(unistd|link|fcntl|signal|poll|dirent|spawn|pthread|sched|errno|ifaddrs|netdb|execinfo|cxxabi|stdlib|string|dlfcn|malloc)\.h"
    r"|[a-z]+intrin\.h|cpuid\.h"
)

# rule, pattern on code (comments and literals blanked), folders where it holds, exempt folders, sentence
BANNED = (
    ("using-namespace", r"\busing\s+namespace\b", ("",), (), "name what you use"),
    ("print", r"\bstd::c(out|err)\b|\b(f|v|vf)?printf\s*\(|\bputs\s*\(", ("",),
     ("worker/cli/", "worker/bench/", "worker/program/", "worker/examples/", "switch_agg/bench/", "tests/"), "libraries log through a callback; only programs print"),
    ("assert", r"\bassert\s*\(", ("",), (), "MILLRACE_CHECK is on in release builds too"),
    ("sleep", r"\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\(", ("",), (), "time is injected; shells wait in poll"),
    ("host-lookup", r"\b(getaddrinfo|gethostbyname\w*)\s*\(", ("",), ("protocol/address/host_lookup.cc", "tests/"),
     "protocol/address/host_lookup.h finds every address of a name, of both families"),
    ("json-dump", r"\.dump\(\s*\)", ("",), ("tests/",), "it throws on text that is not UTF-8: dump with error_handler_t::replace"),
    ("rand", r"\b(s?rand|random|drand48)\s*\(\s*\)|\bstd::random_device\b", ("",), (), "use kernels/base/random.h with a key"),
    ("reinterpret-cast", r"\breinterpret_cast\b", ("",), ("tests/",), "use std::memcpy or std::bit_cast, or say why in allowed.txt"),
    ("device-wait", r"\bcuda(DeviceSynchronize|Malloc|Free|Memcpy|MemcpyToSymbol)\s*\(", ("kernels/", "worker/", "switch_agg/"), (),
     "it waits for the whole device: a DeviceQueue waits for its own stream"),
    ("throw", r"\bthrow\b", ("kernels/", "protocol/", "server/", "switch_agg/"), (), "return std::expected"),
)
WORK_NOTE = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
NATIVE = re.compile(r"-march=native|-mtune=native")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|home/\w+|root)/")
LOOSE_NAME = re.compile(r"(^|[_/])(utils?|common|helpers?|manager)(?=[_./]|$)")
BOOL_PARAMETER = re.compile(r"[(,]\s*(?:const\s+)?bool\s+\w+\s*(?:=[^,()]*)?(?=[,)])")
# In newer releases of fmt another header no longer brings these.
NAMES_WITH_A_HEADER = ((r"\bfmt::join\b", "fmt/ranges.h"), (r"\bfmt::(localtime|gmtime)\b", "fmt/chrono.h"))
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)

RULES = {
    "layer": "a folder includes only the folders of its row in include_table.txt, and each of them",
    "third-party": "a third-party header lives in one place",
    "public-header": "worker/include/millrace includes the standard library and itself only",
    "own-header": "a file includes the header of a name that newer releases of a library have moved there",
    "pragma-once": "every header has #pragma once",
    "bool-parameter": "no bare bool parameter in a header",
    "preprocessor": "no #if inside a function",
    "function-length": f"a function has at most {FUNCTION_LINES_MAX} lines",
    "file-length": f"a source file has at most {FILE_LINES_MAX} lines",
    "line-length": f"a line of C++ and of the Python package has at most {COMMENT_COLUMNS_MAX} columns",
    "file-name": "no utils, common, helpers, manager",
    "work-note": "no notes of unfinished work",
    "native": "Highway dispatches at run time",
    "machine-path": "no path of one machine",
    "whitespace": "no trailing blanks, tabs or carriage returns; one newline at the end",
    "allowed": "every line of allowed.txt is used",
    "ratchet": "ratchet.txt and long_functions.txt only shrink",
    "rule-anchor": "a citation as R9c or S6.8 names an anchor of protocol/ROUNDS.md or protocol/SWITCH.md",
    "dead-path": "a document that a comment names is in this repository",
    "citation": "a publication is cited by a key of kernels/REFERENCES.md, and each of its entries is cited",
    "local-name": "a name that a source file keeps to itself is unique among the folders that share unity units (include_table.group_of())",
} | {name: sentence for name, _, _, _, sentence in BANNED} | documents.RULES
RATCHETED = language.RULES | sizes.RULES
RULES |= RATCHETED


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def check_includes(path, text):
    public = path.startswith("worker/include/millrace/")
    code = cpp_text.blank_comments_and_literals(text, keep_strings=True)
    for match in INCLUDE.finditer(code):
        name = match.group(1) or match.group(2)
        line = line_of(text, match.start())
        own = match.group(1) is not None and name.split("/", 1)[0] in FOLDERS + ("millrace",)
        if public and not (name.startswith("millrace/") or (match.group(2) and "." not in name and "/" not in name)):
            yield Finding(path, line, "public-header", f"{name}: only the standard library and millrace/")
        elif own or name.startswith("millrace/"):
            if refusal := include_table.refusal(INCLUDES, path, name):
                yield Finding(path, line, "layer", refusal)
        elif match.group(2) and ("." not in name or SYSTEM.fullmatch(name)):
            if not re.fullmatch(r"[a-z_0-9]+(\.h)?|.*/.*\.h", name):
                yield Finding(path, line, "third-party", f"{name} has no place in tests/lint/lint.py")
        else:
            yield from check_third_party(path, line, name)


def check_own_headers(path, text):
    names = {match.group(1) or match.group(2) for match in INCLUDE.finditer(text)}
    code = cpp_text.blank_comments_and_literals(text)
    for pattern, header in NAMES_WITH_A_HEADER:
        match = re.search(pattern, code)
        if match and header not in names:
            yield Finding(path, line_of(code, match.start()), "own-header", f"{match.group(0)} needs <{header}>")


def check_include_table(texts):
    """Finds allowances of the include table that no include needs, and rows without a file."""
    includes = {}
    for path, text in texts.items():
        if path.endswith((".h", ".cc")):
            folder = os.path.dirname(path)
            names = (match.group(1) or match.group(2) for match in INCLUDE.finditer(text))
            includes.setdefault(folder, set()).update(
                os.path.dirname(include_table.PUBLIC[1] + name[len(include_table.PUBLIC[0]):] if name.startswith(include_table.PUBLIC[0]) else name)
                for name in names)
    for folder, name in include_table.unused(INCLUDES, includes):
        yield Finding("tests/lint/include_table.txt", 1, "layer", f"{folder} does not include {name}: take it out")
    for folder, allowed in INCLUDES.items():
        if folder not in includes:
            yield Finding("tests/lint/include_table.txt", 1, "layer", f"{folder} has no source file: take the row out")
        page = f"{folder}/README.md"
        named = include_table.named_in(texts[page], INCLUDES) if page in texts else None
        if named is not None and named | {folder, include_table.GROUND} != allowed:
            difference = ", ".join(sorted((named | {folder, include_table.GROUND}) ^ allowed))
            yield Finding(page, 1, "layer", f'"May include" and the row of include_table.txt differ: {difference}')
        includers = include_table.includers_in(texts.get(page, ""))
        difference = include_table.differences(folder, includers, includes) if includers else []
        if difference:
            yield Finding(page, 1, "layer", f'"Included by" and the includes differ: {", ".join(difference)}')


def check_third_party(path, line, name):
    for pattern, places in THIRD_PARTY:
        if re.fullmatch(pattern, name):
            if not path.startswith(places):
                yield Finding(path, line, "third-party", f"{name} belongs to {', '.join(places)}")
            return
    yield Finding(path, line, "third-party", f"{name} has no place in tests/lint/lint.py: name one")


def check_banned(path, text):
    code = cpp_text.blank_comments_and_literals(text)
    for rule, pattern, folders, exempt, sentence in BANNED:
        if not path.startswith(folders) or (exempt and path.startswith(exempt)):
            continue
        for match in re.finditer(pattern, code):
            yield Finding(path, line_of(code, match.start()), rule, f"{match.group(0).strip()}: {sentence}")


def check_header(path, text):
    if not path.endswith(".h"):
        return
    if not re.search(r"^#pragma once$", text, re.MULTILINE):
        yield Finding(path, 1, "pragma-once", RULES["pragma-once"])
    if path.startswith("tests/"):
        return
    code = cpp_text.blank_comments_and_literals(text)
    for match in BOOL_PARAMETER.finditer(code):
        yield Finding(path, line_of(code, match.start()), "bool-parameter", "name the two cases in an enum, or use an options struct")


def check_functions(path, text, ratchet):
    seen = {}
    lines = text.split("\n")
    for function in cpp_text.functions(text):
        key = (path, function.name)
        seen[key] = max(seen.get(key, 0), function.lines)
        limit = max(FUNCTION_LINES_MAX, ratchet.get(key, 0))
        if function.lines > limit:
            yield Finding(path, function.first_line, "function-length", f"{function.name} has {function.lines} lines, the limit is {limit}")
        for number in range(function.first_line, function.last_line):
            if re.match(r"\s*#\s*(if|ifdef|ifndef|else|elif)\b", lines[number]):
                yield Finding(path, number + 1, "preprocessor", f"{function.name}: features are files that CMake selects")
    for (listed_path, name), listed in ratchet.items():
        if listed_path != path:
            continue
        now = seen.get((path, name), 0)
        if now < listed:
            yield Finding(path, 1, "ratchet", f"{name} has {now} lines now, long_functions.txt says {listed}: run --update-ratchet")


def check_file(path, text):
    lines = text.split("\n")
    if path.endswith(CPP + (".py", ".sh")) and len(lines) - 1 > FILE_LINES_MAX:
        yield Finding(path, FILE_LINES_MAX, "file-length", f"{len(lines) - 1} lines, the limit is {FILE_LINES_MAX}")
    if LOOSE_NAME.search(path.lower()):
        yield Finding(path, 1, "file-name", "say what it holds: " + RULES["file-name"])
    for number, line in enumerate(lines, 1):
        if WORK_NOTE.search(line):
            yield Finding(path, number, "work-note", "finish it, or open an issue")
        if NATIVE.search(line):
            yield Finding(path, number, "native", RULES["native"])
        if MACHINE_PATH.search(line):
            yield Finding(path, number, "machine-path", "use a relative path or a variable")
        if (path.endswith(CPP) or path.startswith(PYTHON_PACKAGE)) and len(line) > COMMENT_COLUMNS_MAX:
            yield Finding(path, number, "line-length", f"{len(line)} columns")
        if line != line.rstrip() or (path.endswith(CPP) and "\t" in line):
            yield Finding(path, number, "whitespace", RULES["whitespace"])
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        yield Finding(path, len(lines), "whitespace", "exactly one newline at the end")


def lint_text(path, text, ratchet=None):
    """All findings of one file, exceptions not yet taken out."""
    findings = list(check_file(path, text))
    if path.endswith(CPP):
        findings += check_includes(path, text)
        findings += check_own_headers(path, text)
        findings += check_banned(path, text)
        findings += check_header(path, text)
        findings += check_functions(path, text, ratchet or {})
    return findings


def check_local_names(texts):
    """Findings of names that two source files of one folder keep to themselves; texts is {path: text}."""
    sources = {path: local_names.local_names(text) for path, text in texts.items()
               if path.endswith(".cc") and os.path.dirname(path) not in PROGRAM_FOLDERS and ONE_UNIT not in text}
    for path, name, other in local_names.clashes(sources):
        yield Finding(path, name.line, "local-name", f"{name.name} is a name of {other} too: rename one, or share it in a header")


def check_citations(texts):
    """Findings of citations of rules, publications and documents that are not there; texts is {path: text}, of all files."""
    for path, line, message in rule_anchors.unknown_citations(texts):
        yield Finding(path, line, "rule-anchor", message)
    for path, line, message in rule_anchors.dead_paths(texts):
        yield Finding(path, line, "dead-path", message)
    for path, line, sentence in citations.check(texts):
        yield Finding(path, line, "citation", sentence)


def read_allowed(text):
    """Lines `rule path-pattern reason…`; # starts a comment."""
    allowed = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split("#", 1)[0].split(None, 2)
        if not fields:
            continue
        if len(fields) < 3 or fields[0] not in RULES:
            raise ValueError(f"allowed.txt:{number}: want 'rule path-pattern reason', with a rule of --list-rules")
        allowed.append((fields[0], fields[1], number))
    return allowed


def take_out_allowed(findings, allowed):
    used = set()
    kept = []
    for finding in findings:
        match = next((entry for entry in allowed if entry[0] == finding.rule and fnmatch.fnmatch(finding.path, entry[1])), None)
        if match:
            used.add(match)
        else:
            kept.append(finding)
    for entry in allowed:
        if entry not in used:
            kept.append(Finding("tests/lint/allowed.txt", entry[2], "allowed", f"'{entry[0]} {entry[1]}' is not needed any more: remove it"))
    return kept


def read_ratchet(text):
    ratchet = {}
    for line in text.split("\n"):
        fields = line.split("#", 1)[0].split()
        if fields:
            ratchet[(fields[0], fields[1])] = int(fields[2])
    return ratchet


def files_of(root):
    """Relative paths of the text files of the project's own folders and of the top level."""
    for name in sorted(os.listdir(root)):
        if name.endswith(TEXT) and os.path.isfile(os.path.join(root, name)):
            yield name
    for folder in FOLDERS:
        for directory, children, names in os.walk(os.path.join(root, folder)):
            children[:] = sorted(child for child in children if child not in ("build", "__pycache__", "corpus"))
            for name in sorted(names):
                if name.endswith(TEXT):
                    yield os.path.relpath(os.path.join(directory, name), root)


def all_paths(root):
    """Relative paths of all files of the project's own folders and of the top level, but for what builds make."""
    for name in sorted(os.listdir(root)):
        if os.path.isfile(os.path.join(root, name)):
            yield name
    for folder in FOLDERS:
        for directory, children, names in os.walk(os.path.join(root, folder)):
            children[:] = [child for child in children if child not in ("build", "__pycache__")]
            yield from (os.path.relpath(os.path.join(directory, name), root) for name in names)


def check_documents(root, texts, ratchet):
    pages = {path: text for path, text in texts.items() if path.endswith(".md")}
    for fault in documents.check(pages, texts, all_paths(root), ratchet):
        yield Finding(fault.path, fault.line, fault.rule, fault.message)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def head_of(path):
    return "".join(line + "\n" for line in read(path).split("\n") if line.startswith("#"))


def over_limits(texts, banned):
    """What the rules of ratchet.txt find: {(place, rule): ratchet.Over}."""
    return language.check(texts, banned) | sizes.check(texts)


def check_ratcheted(texts, banned, listed):
    for path, line, rule, message in ratchets.compare(over_limits(texts, banned), listed):
        yield Finding(path, line, rule, message)


def texts_of(root):
    """The files that lint reads. Its own name what they ban."""
    return {path: read(os.path.join(root, path)) for path in files_of(root) if not path.startswith("tests/lint/")}


def rewrite_ratchet(root, path, banned, new_rule):
    listed = ratchets.read(read(path), RATCHETED)
    found = over_limits(texts_of(root), banned)
    if new_rule:
        listed = ratchets.with_rule(found, listed, new_rule)
    else:
        listed = ratchets.shrunk(found, ratchets.moved(listed, ratchets.git_moves(root)))
    text = ratchets.text_of(head_of(path), listed)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def update_documents(root, path):
    texts = {name: read(os.path.join(root, name)) for name in files_of(root)}
    pages = {name: text for name, text in texts.items() if name.endswith(".md")}
    kept = documents.shrunk_ratchet(pages, texts, all_paths(root), documents.read_ratchet(read(path)))
    text = documents.ratchet_text(head_of(path), kept)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def update_ratchet(root, ratchet_path, ratchet):
    longest = {}
    for path in files_of(root):
        if path.endswith(CPP):
            for function in cpp_text.functions(read(os.path.join(root, path))):
                longest[(path, function.name)] = max(longest.get((path, function.name), 0), function.lines)
    kept = {key: min(listed, longest.get(key, 0)) for key, listed in ratchet.items() if longest.get(key, 0) > FUNCTION_LINES_MAX}
    head = head_of(ratchet_path)
    with open(ratchet_path, "w", encoding="utf-8") as file:
        file.write(head + "".join(f"{path} {name} {lines}\n" for (path, name), lines in sorted(kept.items())))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(here)), help="the tree to lint")
    parser.add_argument("--update-ratchet", action="store_true", help="shrink ratchet.txt, long_functions.txt and long_documents.txt")
    parser.add_argument("--begin-ratchet", choices=sorted(RATCHETED), help="add today's amounts of a rule that ratchet.txt does not list")
    parser.add_argument("--list-rules", action="store_true")
    arguments = parser.parse_args()
    if arguments.list_rules:
        for rule, sentence in sorted(RULES.items()):
            print(f"{rule:18} {sentence}")
        return 0
    ratchet_path = os.path.join(here, "long_functions.txt")
    ratchet = read_ratchet(read(ratchet_path))
    documents_path = os.path.join(here, "long_documents.txt")
    amounts_path = os.path.join(here, "ratchet.txt")
    banned = language.read_banned(read(os.path.join(here, "banned_words.txt")))
    if arguments.begin_ratchet:
        rewrite_ratchet(arguments.root, amounts_path, banned, arguments.begin_ratchet)
        return 0
    if arguments.update_ratchet:
        rewrite_ratchet(arguments.root, amounts_path, banned, None)
        update_ratchet(arguments.root, ratchet_path, ratchet)
        update_documents(arguments.root, documents_path)
        return 0
    texts = texts_of(arguments.root)
    findings = [finding for path, text in texts.items() for finding in lint_text(path, text, ratchet)]
    findings += check_local_names(texts)
    findings += check_include_table(texts)
    findings += check_documents(arguments.root, texts, documents.read_ratchet(read(documents_path)))
    findings += check_citations(texts)
    findings += check_ratcheted(texts, banned, ratchets.read(read(amounts_path), RATCHETED))
    findings += [
        Finding(path, 1, "ratchet", f"{name}: the file is gone, run --update-ratchet")
        for path, name in ratchet if not os.path.exists(os.path.join(arguments.root, path))
    ]
    findings = take_out_allowed(findings, read_allowed(read(os.path.join(here, "allowed.txt"))))
    for finding in findings:
        print(finding)
    print(f"lint: {len(texts)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

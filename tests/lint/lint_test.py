#!/usr/bin/env python3
"""The lint's own tests: every rule is caught on a made-up snippet, and what is right is left alone."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import citations
import cpp_text
import documents
import include_table
import lint
import local_names
import rule_anchors
# The tests of these rules stand in a file of their own, and run with these.
from language_test import BannedWords, Classes, LongSentences, Ratchet, Sizes, TestNames  # noqa: F401

HEADER = "#pragma once\n"


def rules_of(path, text, ratchet=None):
    return sorted({finding.rule for finding in lint.lint_text(path, text, ratchet)})


def function_of_lines(name, count):
    return f"int {name}(int x) {{\n" + "  x += 1;\n" * (count - 2) + "}\n"


# rule -> (path, text) that must be caught by that rule alone.
CAUGHT = {
    "layer": ("kernels/a.cc", '#include "protocol/messages/frame.h"\n'),
    "third-party": ("server/a.cc", "#include <zmq.hpp>\n"),
    "public-header": ("worker/include/millrace/a.h", HEADER + '#include "kernels/base/result.h"\n'),
    "own-header": ("server/a.cc", "#include <fmt/format.h>\nstd::string f(const List& x) { return fmt::format(kText, fmt::join(x, kComma)); }\n"),
    "pragma-once": ("kernels/a.h", "int f();\n"),
    "bool-parameter": ("kernels/a.h", HEADER + "void send(int count, bool urgent);\n"),
    "preprocessor": ("kernels/a.cc", "int f() {\n#ifdef X\n  return 1;\n#else\n  return 0;\n#endif\n}\n"),
    "function-length": ("kernels/a.cc", function_of_lines("f", 71)),
    "file-length": ("kernels/a.cc", "int x;\n" * 601),
    "line-length": ("kernels/a.cc", "// " + "x" * 130 + "\n"),
    "file-name": ("kernels/base/string_utils.cc", "int x;\n"),
    "work-note": ("kernels/a.cc", "// TODO: finish\n"),
    "native": ("CMakeLists.txt", "add_compile_options(-march=native)\n"),
    "machine-path": ("deploy/a.sh", "cd /home/somebody/millrace\n"),
    "whitespace": ("kernels/a.cc", "int x; \n"),
    "using-namespace": ("tests/a.cc", "using namespace std;\n"),
    "print": ("server/a.cc", 'void f() { std::cout << "x"; }\n'),
    "assert": ("kernels/a.cc", "void f(int x) { assert(x); }\n"),
    "sleep": ("tests/a.cc", "void f() { std::this_thread::sleep_for(s); }\n"),
    "host-lookup": ("worker/a.cc", "int f() { return getaddrinfo(nullptr, nullptr, nullptr, nullptr); }\n"),
    "json-dump": ("worker/cli/a.cc", "std::string f(const Json& x) { return x.dump(); }\n"),
    "rand": ("tests/a.cc", "int f() { return rand(); }\n"),
    "reinterpret-cast": ("kernels/a.cc", "int* f(char* x) { return reinterpret_cast<int*>(x); }\n"),
    "device-wait": ("kernels/cuda/a.cc", "void f() { cudaDeviceSynchronize(); }\n"),
    "throw": ("server/a.cc", "void f() { throw 1; }\n"),
    "ratchet": ("kernels/a.cc", "int f() { return 0; }\n"),
}


class EachRule(unittest.TestCase):
    def test_IsCaughtOnItsSnippetAndNothingElseIs(self):
        for rule, (path, text) in CAUGHT.items():
            with self.subTest(rule):
                ratchet = {("kernels/a.cc", "f"): 80} if rule == "ratchet" else None
                self.assertEqual(rules_of(path, text, ratchet), [rule])

    def test_LinesOfThePythonPackageHaveTheLimitOfCpp(self):
        line = "#" + "x" * 130 + "\n"
        self.assertEqual(rules_of("worker/python/millrace/a.py", line), ["line-length"])
        self.assertEqual(rules_of("tests/a.py", line), [])

    def test_HasASnippet(self):
        self.assertEqual(set(lint.RULES) - set(CAUGHT), {"allowed", "local-name", "rule-anchor", "dead-path", "citation"} | set(documents.RULES) | set(lint.RATCHETED))


class Includes(unittest.TestCase):
    def test_AFolderIncludesTheFoldersOfItsRowAlone(self):
        table = include_table.parse("kernels/base\nkernels/stream\nkernels/codec kernels/stream\n# a comment\nserver kernels/codec\n")
        for folder, header, allowed in [("kernels/codec", "kernels/stream/stream.h", True), ("kernels/codec", "kernels/base/result.h", True),
                                        ("kernels/codec", "kernels/codec/codec.h", True), ("kernels/stream", "kernels/codec/codec.h", False),
                                        ("server", "kernels/stream/stream.h", False), ("server/part", "kernels/base/result.h", False),
                                        ("tests/server", "kernels/stream/stream.h", True)]:
            with self.subTest(folder=folder, header=header):
                self.assertEqual(include_table.refusal(table, f"{folder}/a.cc", header) == "", allowed)

    def test_ATableWithACircleOrARowTwiceIsRefused(self):
        for text in ("a b\nb a\n", "a\na\n", "a\nb c\n"):
            with self.subTest(text), self.assertRaises(include_table.BadTable):
                include_table.parse(text)

    def test_AnAllowanceThatNoIncludeNeedsIsFound(self):
        table = include_table.parse("a\nb a\nc a b\n")
        self.assertEqual(include_table.unused(table, {"b": {"a"}, "c": {"b"}}), [("c", "a")])

    def test_AReadmeNamesTheFoldersOfItsRow(self):
        table = include_table.parse("kernels/base\na\nb a\n")
        self.assertEqual(include_table.named_in("# b\n\n**May include:** `kernels/base`, `a`; zlib's\n`z`.\n\n`b`\n", table), {"kernels/base", "a"})
        self.assertIsNone(include_table.named_in("# b\n", table))

    def test_ThePublicInterfaceIsIncludedByItsInstalledName(self):
        self.assertEqual(rules_of("worker/session/a.cc", '#include "millrace/millrace.h"\n'), [])
        self.assertEqual(rules_of("worker/core/a.cc", '#include "millrace/millrace.h"\n'), ["layer"])

    def test_FilesOfOnePartShareUnits(self):
        for path, group in [("server/part/a.cc", "server"), ("kernels/codec/index/a.cc", "kernels"), ("worker/core/a.cc", "worker/core"),
                            ("tests/worker/peer/a.cc", "tests/worker"), ("monitoring/http/a.cc", "monitoring")]:
            self.assertEqual(include_table.group_of(path), group)

    def test_ThirdPartyHeadersAreFreeInTheirPlaceOnly(self):
        for header, place in [("<capnp/message.h>", "protocol/messages"), ("<prometheus/registry.h>", "monitoring"),
                              ('"hwy/highway.h"', "kernels"), ("<CLI/CLI.hpp>", "worker/cli"),
                              ("<nlohmann/json.hpp>", "worker/cli"), ("<mpi.h>", "worker/peer/transport"), ("<rte_mbuf.h>", "switch_agg/packet_io/dpdk")]:
            with self.subTest(header):
                self.assertEqual(rules_of(f"{place}/a.cc", f"#include {header}\n"), [])
                other = "kernels" if place != "kernels" else "protocol"
                self.assertEqual(rules_of(f"{other}/a.cc", f"#include {header}\n"), ["third-party"])

    def test_UnknownThirdPartyHeadersAreCaught(self):
        self.assertEqual(rules_of("worker/a.cc", "#include <boost/asio.hpp>\n"), ["third-party"])

    def test_StandardAndSystemHeadersAreFree(self):
        self.assertEqual(rules_of("server/a.cc", "#include <expected>\n#include <sys/socket.h>\n#include <unistd.h>\n"), [])
        self.assertEqual(rules_of("worker/include/millrace/a.h", HEADER + '#include <span>\n#include "millrace/job.h"\n'), [])

    def test_IncludesInCommentsAreNotIncludes(self):
        self.assertEqual(rules_of("kernels/a.cc", '// #include "server/round.h"\n'), [])


class Tokens(unittest.TestCase):
    def test_WordsInCommentsAndStringsAreNotCode(self):
        self.assertEqual(rules_of("server/a.cc", '// we never throw, nor assert(x)\nauto s = "throw rand() std::cout";\n'), [])

    def test_LookalikesAreFree(self):
        self.assertEqual(rules_of("kernels/a.cc", "static_assert(sizeof(int) == 4);\nint operand(int);\nauto n = 1'000'000;\n"), [])

    def test_ProgramsAndTestsMayPrint(self):
        text = 'void f() { std::cout << "x"; }\n'
        for path in ("worker/cli/a.cc", "tests/a.cc"):
            self.assertEqual(rules_of(path, text), [])

    def test_BoolMembersAndReturnsAreFree(self):
        text = HEADER + "struct S { bool dense = false; };\nbool ready(int x);\nusing F = std::function<void(bool)>;\n"
        self.assertEqual(rules_of("kernels/a.h", text), [])


class FunctionLengths(unittest.TestCase):
    def test_TheLimitItselfIsFree(self):
        self.assertEqual(rules_of("kernels/a.cc", function_of_lines("f", 70)), [])

    def test_TheRatchetAllowsItsNumberAndNoMore(self):
        ratchet = {("kernels/a.cc", "f"): 90}
        self.assertEqual(rules_of("kernels/a.cc", function_of_lines("f", 90), ratchet), [])
        self.assertEqual(rules_of("kernels/a.cc", function_of_lines("f", 91), ratchet), ["function-length"])
        self.assertEqual(rules_of("kernels/a.cc", function_of_lines("f", 89), ratchet), ["ratchet"])

    def names(self, text):
        return [(function.name, function.lines) for function in cpp_text.functions(text)]

    def test_FindsFunctionsWhereverTheyStand(self):
        text = ("namespace a {\nclass C {\n public:\n  C(int x) : x_{x}, y_(1) {\n    g();\n  }\n  int f() const { return x_; }\n"
                "  int x_{0};\n};\n}  // namespace a\nTEST(Round, Ends) {\n  auto l = [](int v) {\n    return v;\n  };\n}\n"
                "template <typename T = std::vector<int>>\nvoid t(Options o = {}) {\n}\nint C::h(int a) { return a; }\n")
        self.assertEqual(self.names(text), [("C", 3), ("f", 1), ("Round.Ends", 5), ("t", 3), ("C::h", 1)])

    def test_BracesInLiteralsCommentsAndMacrosDoNotCount(self):
        text = "#define OPEN {\nvoid f() {\n  char c = '{'; // }\n  auto s = \"{{\"; /* } */ auto r = R\"x(})\" {)x\";\n}\nvoid g() {\n}\n"
        self.assertEqual(self.names(text), [("f", 4), ("g", 2)])

    def test_InitializersAreNotFunctions(self):
        self.assertEqual(self.names("const int kTable[] = {f(1), f(2)};\nauto x = S{1, 2};\nenum class E { kA = f(1) };\n"), [])


class LocalNames(unittest.TestCase):
    def names(self, text):
        return [name.name for name in local_names.local_names(text)]

    def clashing(self, **texts):
        return [(finding.path, finding.line) for finding in lint.check_local_names({f"{name}.cc": text for name, text in texts.items()})]

    def test_EveryKindOfDeclarationIsFound(self):
        text = ("namespace a {\nnamespace {\n#define X {\nconstexpr int kOne = f(1);\nconst std::array<int, 2> kTwo{{1, 2}};\n"
                "struct Three {\n  int member() const { return kOne; }\n  int four_{};\n};\nenum class Four { kA, kB };\n"
                "template <typename T = std::vector<int>>\nvoid five(T x = {}) {\n  int local = 1;\n}\nusing Six = int;\n"
                "[[nodiscard]] int seven(int);\nbool operator==(Three, Three) { return true; }\nint kEight[3] = {1, 2, 3};\n"
                "TEST_F(Nine, IsATest) {\n}\nnamespace inner {\nint not_at_its_level;\n}\n}  // namespace\n"
                "static std::function<void(int)> ten() { return {}; }\nint exported() { return 2; }\nint Three::member() { return 3; }\n}\n")
        self.assertEqual(self.names(text), ["kOne", "kTwo", "Three", "Four", "five", "Six", "seven", "operator==", "kEight", "Nine.IsATest", "ten"])

    def test_TwoFilesOfAFolderMayNotKeepTheSameName(self):
        one, other = "namespace {\nint limit = 1;\n}\n", "namespace {\n\nstatic int limit() { return 2; }\n}\n"
        self.assertEqual(self.clashing(**{"server/a": one, "server/b": other}), [("server/b.cc", 3)])
        self.assertEqual(self.clashing(**{"server/a": one, "worker/b": other}), [])
        self.assertEqual(self.clashing(**{"server/a": one + one}), [])
        self.assertEqual(self.clashing(**{"tests/fuzz/a": one, "tests/fuzz/b": other}), [])

    def test_NamesOfOneInstructionSetAreTheFilesOwn(self):
        text = "HWY_BEFORE_NAMESPACE();\nnamespace a {\nnamespace HWY_NAMESPACE {\nsize_t scan(int);\n}\nint exported();\n}\n"
        self.assertEqual(self.names(text), ["scan"])
        self.assertEqual(self.clashing(**{"kernels/a": text, "kernels/b": text}), [("kernels/b.cc", 4)])

    def test_AliasesOfOneTypeMayMeet(self):
        alias = "namespace {\nusing Json = nlohmann::json;\n}\n"
        self.assertEqual(self.clashing(**{"server/a": alias, "server/b": alias}), [])
        self.assertEqual(self.clashing(**{"server/a": alias, "server/b": alias.replace("json;", "ordered_json;")}), [("server/b.cc", 2)])

    def test_PrintersForGoogleTestAreOverloads(self):
        printer = "namespace {\nvoid PrintTo(const A&, std::ostream*) {}\n}\n"
        self.assertEqual(self.clashing(**{"tests/a": printer, "tests/b": printer}), [])


class Documents(unittest.TestCase):
    PATHS = ("README.md", "server/README.md", "server/part/part_round.cc", "server/part/part_round.h", "worker/core/residual/local_clip.h", "plot.svg")
    EXAMPLE = "#include <x>\n// README: begin\nint f();\n// README: end\nint main() {}\n"

    def faults(self, text, path="README.md", ratchet=None, sources=None, others=None):
        texts = {path: text} | (others or {})
        return [(fault.rule, fault.line) for fault in documents.check(texts, sources or {}, self.PATHS, ratchet or {})]

    def test_SizesHaveALimitByTheKindOfPage(self):
        for path, limit in (("README.md", 8_000), ("kernels/a/README.md", 4_000), ("kernels/a/DESIGN.md", 12_000)):
            with self.subTest(path):
                self.assertEqual(self.faults("x\n" * (limit // 2), path), [])
                self.assertEqual(self.faults("x\n" * (limit // 2 + 1), path), [("document-size", 1)])

    def test_ColumnsAreCountedInCharactersAndInCodeBlocksToo(self):
        self.assertEqual(self.faults("ä" * 120 + "\n"), [])
        self.assertEqual(self.faults("```\n" + "x" * 121 + "\n```\n"), [("document-columns", 2)])

    def test_LinksLeadToFilesAndHeadings(self):
        others = {"server/README.md": "# The shard\n\n## Stop `and` restart\n\n## Twice\n\n## Twice\n<a id=\"R9c\"></a>\n```\n# no heading\n```\n"}
        for target in ("server/README.md", "server/", "plot.svg", "https://example.org/x#y", "server/README.md#the-shard",
                       "server/README.md#stop-and-restart", "server/README.md#twice-1", "server/README.md#R9c"):
            with self.subTest(target):
                self.assertEqual(self.faults(f"[a]({target})\n", others=others), [])
        for target in ("gone.md", "server/README.md#gone", "server/README.md#no-heading", "#gone", "../README.md"):
            with self.subTest(target):
                self.assertEqual(self.faults(f"x\n[a]({target})\n", others=others), [("dead-link", 2)])

    def test_LinksAreRelativeToTheirPage(self):
        self.assertEqual(self.faults("[a](../README.md) [b](part/part_round.h)\n", "server/README.md", others={"README.md": ""}), [])
        self.assertEqual(self.faults("[a](server/part/part_round.h)\n", "server/README.md"), [("dead-link", 1)])

    def test_FilesThatAreNamedAreInTheTree(self):
        for name in ("part_round.h", "server/part/part_round.cc", "residual/local_clip", "server/", "part_round.{h,cc}", "part_*.cc", "part_NAME.cc",
                     "bytes/s", "jobs.json", "a.b()", ".h", "tcp://x:1", "/metrics", "--flag", "git mv a.cc b.cc"):
            with self.subTest(name):
                self.assertEqual(self.faults(f"`{name}`\n"), [])
        for name in ("patience.h", "core/gone", "server/clip.h", "part_round.{h,py}", "gone_*.cc"):
            with self.subTest(name):
                self.assertEqual(self.faults(f"\n`{name}`\n"), [("dead-name", 2)])
        self.assertEqual(self.faults("```\n`gone.h` [a](gone.md)\n```\n"), [])

    def test_TestsThatAreNamedAreFilesOrNamesInCMake(self):
        sources = {"tests/CMakeLists.txt": "function(added_test)\nadded_test(NAME part_test SOURCES x.cc)\n"}
        for name, faults in (("added_test", []), ("part_test", []), ("clip_test", []), ("gone_test", [("dead-name", 1)])):
            with self.subTest(name):
                paths = (*self.PATHS, "tests/clip_test.cc")
                found = documents.check({"README.md": f"`{name}`\n"}, sources, paths, {})
                self.assertEqual([(fault.rule, fault.line) for fault in found], faults)

    def test_CodeBlocksAreThePartsOfTheirExamples(self):
        def page(code):
            return f"<!-- example: worker/e.cc -->\n```cpp\n{code}```\n"
        sources = {"worker/e.cc": self.EXAMPLE}
        self.assertEqual(self.faults(page("int f();\n"), sources=sources), [])
        self.assertEqual(self.faults(page("int g();\n"), sources=sources), [("example", 1)])
        self.assertEqual(self.faults(page("int f();\n")), [("example", 1)])
        self.assertEqual(self.faults(page("int x;\n"), sources={"worker/e.cc": "int x;\n"}), [])
        self.assertEqual(self.faults(page("int f();\n"), sources={"worker/e.cc": self.EXAMPLE * 2}), [("example", 1)])
        for lines, faults in ((30, []), (31, [("example", 1)])):
            long_part = "int x;\n" * lines
            self.assertEqual(self.faults(page(long_part), sources={"worker/e.cc": long_part}), faults)
        self.assertEqual(documents.with_examples(page(""), sources), page("int f();\n"))

    def test_TheRatchetAllowsItsNumberAndNoMore(self):
        wide, ratchet = "x" * 121 + "\n", {("README.md", "columns"): 2}
        self.assertEqual(self.faults(wide * 2, ratchet=ratchet), [])
        self.assertEqual([rule for rule, _ in self.faults(wide * 3, ratchet=ratchet)], ["document-columns"] * 3)
        self.assertEqual(self.faults(wide, ratchet=ratchet), [("document-ratchet", 1)])
        self.assertEqual(self.faults("x\n", "server/README.md", ratchet), [("document-ratchet", 1)])

    def test_TheRatchetShrinksAndNeverGrows(self):
        texts = {"README.md": "x\n" * 5_500, "server/README.md": ("x" * 121 + "\n") * 2}
        ratchet = {("README.md", "kilobytes"): 20, ("README.md", "columns"): 3, ("server/README.md", "columns"): 1, ("gone.md", "links"): 1}
        shrunk = documents.shrunk_ratchet(texts, {}, self.PATHS, ratchet)
        self.assertEqual(shrunk, {("README.md", "kilobytes"): 11, ("server/README.md", "columns"): 1})
        self.assertEqual(documents.read_ratchet(documents.ratchet_text("# head\n", shrunk)), shrunk)
        with self.assertRaises(ValueError):
            documents.read_ratchet("README.md words 3\n")


class Citations(unittest.TestCase):
    ENTRIES = ('- <a id="SparCML19"></a>**[SparCML19]** A. "T". 2019.\n- <a id="RedSync19"></a>**[RedSync19]** B. "U". 2019.\n'
               '- <a id="RFC1071"></a>**[RFC1071]** C. "V". 1988.\n')
    CITES_ALL = "[SparCML19, 5.3], [RedSync19, algorithm 4], [RFC1071]\n"

    def found(self, path, text, entries=ENTRIES):
        texts = {"kernels/REFERENCES.md": entries, "README.md": self.CITES_ALL, path: text}
        return [(finding.path, finding.line) for finding in lint.check_citations(texts) if finding.rule == "citation"]

    def test_AKeyOfTheListIsFreeInEveryKindOfFile(self):
        for path, text in (("kernels/a.h", "/// Source   [SparCML19, 5.3.2]; [RFC1071].\n"), ("kernels/a.cc", 'auto s = "x [RedSync19, 2.1]: y";\n'),
                           ("kernels/a.cc", "// [RedSync19,\n// algorithm 4]\n"), ("tests/a.py", '"""[SparCML19, figures 1 and 7]: x."""\n'),
                           ("a/b.md", "| x | [SparCML19, 5.1], [RedSync19, equations 1 and 2] |\n"), ("a/b.sh", "x=1  # [RFC1071, 2]\n")):
            with self.subTest(path=path, text=text):
                self.assertEqual(self.found(path, text), [])

    def test_AKeyWithoutAnEntryIsCaughtInEveryKindOfFile(self):
        for path, text, line in (("kernels/a.h", "\n/// Source   [SparCML21, 5.3.2].\n", 2), ("kernels/a.cc", 'auto s = "[Knuth97]: y";\n', 1),
                                 ("kernels/a.cc", "/* x\n * [Nobody20,\n * 3] */\n", 2), ("tests/a.py", "# x\nY = 'see [RFC9999]'\n", 2),
                                 ("tests/a.py", '"""x\n[Nobody20, 3]."""\n', 2), ("a/b.md", "x\n\n([Nobody20])\n", 3),
                                 ("a/b.sh", "# [Nobody20, 2]\n", 1), ("CMakeLists.txt", "x(y) # [Nobody20, 2]\n", 1)):
            with self.subTest(path=path, text=text):
                self.assertEqual(self.found(path, text), [(path, line)])

    def test_AKeyInOtherLettersIsCaught(self):
        self.assertEqual(self.found("kernels/a.h", "/// [sparcml19, 5.3] and [SPARCML19]\n"), [("kernels/a.h", 1)] * 2)

    def test_ACitationInAnotherFormIsCaught(self):
        for form in ("sparcml.txt, section 5.3", "redsync.txt", "redsync.pdf", "unheard-of.txt, algorithm 2", "gspar.txt, (4)",
                     "Lin et al. 2018", "RFC 1071", "SparCML 5.3.1", "RedSync's algorithm 4", "Ok-Topk, table 1", "GSpar appendix B"):
            for path, text in (("kernels/a.cc", f"// as {form} has it\n"), ("kernels/a.cc", f'auto s = "{form}";\n'), ("a/b.md", f"({form})\n"),
                               ("tests/a.py", f"# {form}\n")):
                with self.subTest(path=path, text=text):
                    self.assertEqual(self.found(path, text), [(path, 1)])

    def test_BracketsThatCiteNothingAreFree(self):
        for path, text in (("kernels/a.cc", "int x = table[Word12, 3] + f()[Word12];\nauto l = [Index64] {};\n"), ("tests/a.py", "x = [Thing12, 3]\n"),
                           ("kernels/a.h", "/// values [n] f32; bytes[Word12]; [U32]; [2001:db8::1]; rule [9c]; [i16]\n"),
                           ("a/b.md", "[Chapter12](a.md), [N] f32, `x[Word12]`\n"), ("a/b.sh", '[[ "$x" = [Abcd12] ]]\n')):
            with self.subTest(path=path, text=text):
                self.assertEqual(self.found(path, text), [])

    def test_NamesOfSystemsAndOfFilesAreFree(self):
        for text in ("Ok-Topk 2.8 × as fast", "RedSync's selections; GSpar's baseline; SparCML, 8 hosts at 1 Gbit/s", "CMakeLists.txt, line 3",
                     "tests/lint/allowed.txt holds exceptions", "a table 4 bytes wide", "SWITCH.md, section 6"):
            with self.subTest(text):
                self.assertEqual(self.found("kernels/a.h", f"/// {text}\n"), [])

    def test_AnEntryThatNothingCitesIsCaught(self):
        entries = self.ENTRIES + '- <a id="Nobody20"></a>**[Nobody20]** D. "W". 2020. [Nobody20]\n'
        self.assertEqual(self.found("kernels/a.h", "int nobody20[Nobody20];\n", entries), [("kernels/REFERENCES.md", 4)])

    def test_AnEntryOfTheWrongFormOrTwiceIsCaught(self):
        for entry in ("- [SparCML19] A.\n", '- <a id="SparCML18"></a>**[SparCML19]** A.\n', self.ENTRIES.split("\n")[0] + "\n"):
            with self.subTest(entry):
                self.assertEqual(self.found("kernels/a.h", "int x;\n", self.ENTRIES + entry), [("kernels/REFERENCES.md", 4)])


class Exceptions(unittest.TestCase):
    FINDING = lint.Finding("server/process/main.cc", 3, "print", "x")

    def test_AnAllowedFindingIsTakenOut(self):
        self.assertEqual(lint.take_out_allowed([self.FINDING], lint.read_allowed("print server/*.cc it is a program\n")), [])

    def test_AnUnusedLineIsAFinding(self):
        kept = lint.take_out_allowed([], lint.read_allowed("print server/process/main.cc it is a program\n"))
        self.assertEqual([finding.rule for finding in kept], ["allowed"])

    def test_ALineWithoutAReasonIsRefused(self):
        with self.assertRaises(ValueError):
            lint.read_allowed("print server/process/main.cc\n")


class CommandLine(unittest.TestCase):
    def run_on(self, files, ratchet_lines="", arguments=()):
        with tempfile.TemporaryDirectory() as root:
            lint_folder = Path(root) / "tests/lint"
            lint_folder.mkdir(parents=True)
            here = Path(__file__).parent
            for name in ("lint.py", "citations.py", "cpp_text.py", "documents.py", "include_table.py", "language.py", "local_names.py",
                         "ratchet.py", "rule_anchors.py", "sizes.py"):
                (lint_folder / name).write_text((here / name).read_text())
            folders = sorted({str(Path(path).parent) for path in files if path.endswith((".h", ".cc"))})
            (lint_folder / "include_table.txt").write_text("".join(folder + "\n" for folder in folders))
            (lint_folder / "allowed.txt").write_text("")
            (lint_folder / "long_functions.txt").write_text("# head\n")
            (lint_folder / "long_documents.txt").write_text("# head\n")
            (lint_folder / "ratchet.txt").write_text("# head\n" + ratchet_lines)
            (lint_folder / "banned_words.txt").write_text("whoever\tthe actor\n")
            for path, text in files.items():
                (Path(root) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(root) / path).write_text(text)
            return subprocess.run([sys.executable, lint_folder / "lint.py", *arguments], capture_output=True, text=True, check=False)

    def test_AFaultFailsTheRunAndNamesItsPlace(self):
        run = self.run_on({"kernels/a.cc": "int x;\nint f() { return rand(); }\n"})
        self.assertEqual(run.returncode, 1)
        self.assertIn("kernels/a.cc:2: rand:", run.stdout)

    def test_AClashOfLocalNamesFailsTheRun(self):
        text = "namespace {\nint x;\n}\n"
        run = self.run_on({"kernels/a.cc": text, "kernels/b.cc": text})
        self.assertEqual(run.returncode, 1)
        self.assertIn("kernels/b.cc:2: local-name:", run.stdout)

    def test_ADocumentWithADeadLinkFailsTheRun(self):
        run = self.run_on({"server/README.md": "# server\n\n[page](GONE.md)\n"})
        self.assertEqual(run.returncode, 1)
        self.assertIn("server/README.md:3: dead-link:", run.stdout)

    def test_AnUnknownRuleAndADeadPathFailTheRun(self):
        run = self.run_on({"server/a.cc": "// R9c\nint x;\n", "server/b.cc": "// server/DESIGN.md\nint y;\n"})
        self.assertEqual(run.returncode, 1)
        self.assertIn("server/a.cc:1: rule-anchor:", run.stdout)
        self.assertIn("server/b.cc:1: dead-path:", run.stdout)

    def test_ACitationWithoutAnEntryFailsTheRun(self):
        run = self.run_on({"kernels/a.cc": "// [Nobody20, 3]\n"})
        self.assertEqual(run.returncode, 1)
        self.assertIn("kernels/a.cc:1: citation:", run.stdout)

    def test_ABannedWord_FailsTheRunUnlessTheRatchetListsIt(self):
        files = {"kernels/a.cc": "// Whoever asks.\n"}
        run = self.run_on(files)
        self.assertEqual(run.returncode, 1)
        self.assertIn("kernels/a.cc:1: language: 'whoever': write the actor", run.stdout)
        self.assertEqual(self.run_on(files, "kernels/a.cc language 1\n").returncode, 0)
        run = self.run_on(files, "kernels/a.cc language 2\n")
        self.assertIn("kernels/a.cc:1: ratchet: kernels/a.cc: language is 1 now, ratchet.txt says 2", run.stdout)
        run = self.run_on(files, "kernels/a.cc language 1\n", ("--begin-ratchet", "language"))
        self.assertIn("they may only shrink", run.stderr)

    def test_AReadmeThatDiffersFromItsRowFailsTheRun(self):
        run = self.run_on({"kernels/a.cc": "int x;\n", "server/b.cc": "int y;\n", "server/README.md": "# server\n\n**May include:** `kernels`.\n"})
        self.assertEqual(run.returncode, 1)
        self.assertIn('server/README.md:1: layer: "May include"', run.stdout)

    def test_AReadmeNamesTheFoldersThatIncludeIt(self):
        page = "# kernels/base\n\n**Included by:** `kernels/{stream, codec}`.\n"
        sources = {"kernels/base/a.h": HEADER, "kernels/stream/b.cc": '#include "kernels/base/a.h"\n',
                   "kernels/codec/index/c.cc": '#include "kernels/base/a.h"\n'}
        wrong = '"Included by" and the includes differ: '
        self.assertNotIn(wrong, self.run_on({**sources, "kernels/base/README.md": page}).stdout)
        for folder, by in (("kernels/codec", "`kernels/stream`"), ("kernels/draw", "`kernels/{stream, codec, draw}`")):
            run = self.run_on({**sources, "kernels/base/README.md": page.replace("`kernels/{stream, codec}`", by)})
            self.assertIn(wrong + folder, run.stdout)
        self.assertNotIn(wrong, self.run_on({**sources, "kernels/base/README.md": page.replace("`kernels/{stream, codec}`", "everything")}).stdout)

    def test_ACleanTreePasses(self):
        run = self.run_on({"kernels/a.cc": "int x;\n", "kernels/a.h": HEADER})
        self.assertEqual((run.returncode, run.stdout), (0, "lint: 2 files, 0 findings\n"))


ROUNDS = "**R1 push.** A worker pushes.\n\n**R9 rejoin.** It joins.\n\n**R9c settle-evicted.** It settles.\n"
SWITCH = "**S6 one-procedure.** All is one.\n\n**S6.8 removal.** A removal.\n\n**S6.8.3 held-alone.** A row.\n"


def cited(path, text, **more):
    """(rule, line) of what is wrong with the citations of a file beside the two documents."""
    texts = {"protocol/ROUNDS.md": ROUNDS, "protocol/SWITCH.md": SWITCH, **more, path: text}
    return [(finding.rule, finding.line) for finding in lint.check_citations(texts) if finding.path == path]


class RuleAnchors(unittest.TestCase):
    def test_AreReadFromBothDocuments(self):
        anchors, again = rule_anchors.anchors_of({"protocol/ROUNDS.md": ROUNDS, "protocol/SWITCH.md": SWITCH})
        self.assertEqual(sorted(anchors), ["R1", "R9", "R9c", "S6", "S6.8", "S6.8.3"])
        self.assertEqual(anchors["R9c"], ("protocol/ROUNDS.md", 5))
        self.assertEqual(again, [])

    def test_AreCaughtWhereOneIsDefinedTwiceOrInTheOtherDocument(self):
        texts = {"protocol/ROUNDS.md": ROUNDS + "**R1 again.** Twice.\n", "protocol/SWITCH.md": SWITCH + "**R2 admit.** Not here.\n"}
        found = [(finding.path, finding.line) for finding in lint.check_citations(texts) if "twice" in finding.message]
        self.assertEqual(found, [("protocol/ROUNDS.md", 6), ("protocol/SWITCH.md", 6)])

    def test_ThatAreKnownMayBeCitedAnywhere(self):
        for path, text in [("server/a.cc", "/// R9c, S6.8.3: Settles (R1, R9). See S6.\nint x;  // R9c's row\n"),
                           ("server/DESIGN.md", "| R9, R9c | `f` |\n\nBy R1: S6.8.\n"), ("tests/a.py", '"""S6.8."""\nx = 1  # R9c\n'),
                           ("protocol/a.capnp", "# R1\n"), ("tests/CMakeLists.txt", "# S6\n")]:
            with self.subTest(path):
                self.assertEqual(cited(path, text), [])

    def test_ThatAreUnknownAreCaughtInCommentsAndDocuments(self):
        for path, text, line in [("server/a.cc", "int x;\n/// R9z: nothing.\n", 2), ("server/a.cc", "/* a\n R10 */\n", 2), ("server/a.h", "int x;  ///< (S6.9)\n", 1),
                                 ("server/DESIGN.md", "a\n\n| R12 | `f` |\n", 3), ("protocol/ROUNDS.md", ROUNDS + "By R2.\n", 6),
                                 ("tests/a.py", 'def f():\n    """Checks\n    S7."""\n', 3), ("tests/a.py", "x = 1  # R3\n", 1),
                                 ("protocol/a.capnp", "a @0 :Text;  # R2\n", 1), ("deploy/a.sh", "x=1 # S5\n", 1)]:
            with self.subTest(path=path, text=text):
                self.assertEqual(cited(path, text), [("rule-anchor", line)])

    def test_AreNotLookedForInCode(self):
        for path, text in [("server/a.cc", "int S1 = R2;\nauto s = \"R7 S3\";\n"), ("server/DESIGN.md", "`S1` and\n```\nR2 = S3\n```\n"),
                           ("tests/a.py", 'S1 = "R2"\nprint("S3", R4)\n'), ("deploy/a.sh", "S1=2\n"),
                           ("server/b.cc", "// S1x, aR2, P1, R, S, R_2, $R7, x.R8, UTF-8, R2-D2\n")]:
            with self.subTest(path):
                self.assertEqual(cited(path, text), [])

    def test_AreLookedForInTheStringsOfTheModels(self):
        self.assertEqual(cited("tests/models/rounds/a.cc", 'Text t{"empty", "R9z"};\n'), [("rule-anchor", 1)])

    def test_InAFormOfBeforeAreCaughtInComments(self):
        for text in ["/// [9c] Settles.\n", "// SWITCH.md 6.8 says so\n", "// ROUNDS.md, rule 4\n", "// SWITCH.md, sections 1 and 7\n", "// shared/SWITCH.md\n"]:
            with self.subTest(text):
                self.assertEqual([rule for rule, _ in cited("server/a.cc", text)][:1], ["rule-anchor"])

    def test_IndicesAndIntervalsAreNoCitations(self):
        self.assertEqual(cited("server/a.cc", "// values[9], [0, 1], x[9a], [n, d), protocol/ROUNDS.md\n", **{"a.md": ""}), [])


class DeadPaths(unittest.TestCase):
    FILES = {"README.md": "", "worker/DESIGN.md": "", "worker/switch/DESIGN.md": ""}

    def test_OfFoldersAreFromTheFileOrTheTop(self):
        text = "// ../DESIGN.md, protocol/SWITCH.md (README.md)\n"
        self.assertEqual(cited("worker/switch/a.cc", text, **self.FILES), [])

    def test_ThatAreNotThereAreCaught(self):
        for path, text in [("worker/a.cc", "//\n// worker/NOTHING.md\n"), ("worker/a.h", "//\n// ../../shared/DESIGN.md\n"),
                           ("tests/a.py", "#\n# NOTHING.md\n")]:
            with self.subTest(text):
                self.assertEqual(cited(path, text, **self.FILES), [("dead-path", 2)])

    def test_PatternsAddressesAndExamplesAreNoPaths(self):
        text = "// protocol/wire/*.md https://example.org/a.md *.md, a.mdx\n"
        self.assertEqual(cited("worker/a.cc", text, **self.FILES), [])


if __name__ == "__main__":
    unittest.main()

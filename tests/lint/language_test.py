"""Tests of the rules that ratchet.txt relaxes: words, sentences, names of tests, sizes. lint_test.py runs them too."""

import unittest
from pathlib import Path

import language
import lint
import ratchet
import sizes

HEADER = "#pragma once\n"
BANNED = language.read_banned("# head\nwhoever\tthe actor\ncomes? back\t\"rejoins\"\n(?:is|are) told\t\"learns\"\n")
NAMES = language.read_banned("who\tthe actor\nnobody\tthe actor\n")


def worded(path, text):
    """(line, banned word) of a file's faults of rule `language`."""
    over = language.check({path: text}, BANNED).get((path, "language"))
    return [(line, message.split("'")[1]) for _, line, message in over.faults] if over else []


def sentences(path, text):
    """(line, words) of a file's sentences over the limit."""
    over = language.check({path: text}, BANNED).get((path, "sentence"))
    return [(line, int(message.split()[3])) for _, line, message in over.faults] if over else []


class BannedWords(unittest.TestCase):
    def test_InCommentsAndLiterals_AreFound(self):
        for path, text, found in [
                ("server/a.cc", "int x;\n/// A.\n/// Whoever asks.\nint y;\n", [(3, "whoever")]),
                ("server/a.cc", "int x;  // it comes back\n", [(1, "comes back")]),
                ("server/a.cc", "/* one\n   whoever */\n", [(2, "whoever")]),
                ("server/a.h", 'auto s = "the worker is told";\n', [(1, "is told")]),
                ("server/a.cc", 'auto s = "the worker is "\n  "told";\n', []),
                ("tests/a.py", 'def f():\n    """It comes back."""\n    return "who: whoever"  # is told\n',
                 [(2, "comes back"), (3, "whoever"), (3, "is told")]),
                ("deploy/a.sh", "x=1\n# whoever\n", [(2, "whoever")]),
                ("protocol/a.capnp", "a @0 :Text;  # whoever\n", [(1, "whoever")]),
                ("tests/CMakeLists.txt", "# whoever\n", [(1, "whoever")])]:
            with self.subTest(path=path, text=text):
                self.assertEqual(worded(path, text), found)

    def test_OverTheEndOfALine_AreFoundWhereTheyBegin(self):
        self.assertEqual(worded("server/a.cc", "int x;\n\n// a\n// The worker comes\n//   back.\n"), [(4, "comes back")])
        self.assertEqual(worded("server/DESIGN.md", "# a\n\nThe worker comes\nback.\n"), [(3, "comes back")])

    def test_OfTwoBlocks_AreNotJoined(self):
        self.assertEqual(worded("server/a.cc", "int x;  // it comes\n\n// back\n"), [])
        self.assertEqual(worded("server/DESIGN.md", "It comes\n\nback.\n\n| comes | back |\n\n- comes\n- back\n"), [])

    def test_InCodeAndKeys_AreNotFound(self):
        for path, text in [("server/a.cc", 'int whoever = 1;\nauto s = "whoever";\n#include "server/whoever.h"\n'),
                           ("server/DESIGN.md", "`whoever` is a name.\n\n```\nwhoever comes back\n```\n"),
                           ("tests/a.py", "whoever = 1\n"), ("a.json", '{"a": "it comes back"}\n')]:
            with self.subTest(path):
                self.assertEqual(worded(path, text), [])

    def test_InPartsOfWords_AreNotFound(self):
        self.assertEqual(worded("server/a.cc", "// whoevers, comes backwards, this told\n"), [])

    def test_InEveryBlock_HaveTheirLines(self):
        text = "# whoever\n\nwhoever\n\n| whoever | b |\n|---|---|\n| a | whoever |\n\n- a\n  whoever\n"
        self.assertEqual([line for line, _ in worded("server/DESIGN.md", text)], [1, 3, 5, 7, 10])

    def test_OfTheList_AreReadOrRefused(self):
        self.assertEqual(BANNED[1], language.Banned("comes? back", '"rejoins"'))
        for text in ("whoever\n", "whoever\t\n", "Whoever\tthe actor\n"):
            with self.subTest(text), self.assertRaises(ValueError):
                language.read_banned(text)

    def test_OfTheTree_Compile(self):
        banned = language.read_banned((Path(__file__).parent / "banned_words.txt").read_text())
        for entry in banned:
            with self.subTest(entry.pattern):
                language.compiled((entry,))
                self.assertNotIn("(", entry.pattern.replace("(?", ""))


class LongSentences(unittest.TestCase):
    WORDS = " ".join(["word"] * 25)

    def test_AtTheLimit_AreRight(self):
        self.assertEqual(sentences("server/a.cc", f"// {self.WORDS}.\n"), [])
        self.assertEqual(sentences("server/a.cc", f"// {self.WORDS}. {self.WORDS}!\n"), [])

    def test_OverTheLimit_AreFoundWhereTheyBegin(self):
        self.assertEqual(sentences("server/a.cc", f"int x;\n// One. A {self.WORDS}.\n"), [(2, 26)])
        self.assertEqual(sentences("server/a.cc", f"// One.\n// A b\n// {self.WORDS}\n"), [(2, 27)])
        self.assertEqual(sentences("server/DESIGN.md", f"# a\n\nA\n{self.WORDS}.\n"), [(3, 26)])

    def test_OfOtherBlocks_AreNotJoined(self):
        half = " ".join(["word"] * 13)
        for text in (f"{half}\n\n{half}\n", f"- {half}\n- {half}\n", f"| {half} | {half} |\n", f"# {half}\n{half}\n"):
            with self.subTest(text):
                self.assertEqual(sentences("server/DESIGN.md", text), [])
        self.assertEqual(sentences("server/a.cc", f"// {half}\n//\n// {half}\n"), [])
        self.assertEqual(sentences("server/a.cc", f"// {half}\n// - {half}\n"), [])

    def test_WithShortForms_DoNotEndThere(self):
        self.assertEqual(sentences("server/a.cc", f"// a, e.g. {self.WORDS}.\n"), [(1, 27)])

    def test_InLiterals_AreNotCounted(self):
        self.assertEqual(sentences("server/a.cc", f'auto s = "a {self.WORDS}";\n'), [])


class TestNames(unittest.TestCase):
    def test_OverTheLimit_AreFound(self):
        long = "A" * 61
        for path, text, count in [("tests/a.cc", f"TEST(Suite, {long}) {{}}\nTEST_F(S,\n       {long}) {{}}\n", 2),
                                  ("tests/a.cc", f"TEST(Suite, {long[:60]}) {{}}\n", 0), ("tests/a.py", f"    def test_{long}(self):\n", 1),
                                  ("tests/a.py", f"def {long}():\n", 0)]:
            with self.subTest(text):
                over = language.check({path: text}, BANNED).get((path, "test-name"))
                self.assertEqual(over.amount if over else 0, count)


    def test_BannedWords_AreFound(self):
        for path, name, count in [("tests/a.cc", "AStepThatNobodyAwaits", 1), ("tests/a.cc", "AStepThatNoWorkerAwaits", 0),
                                  ("tests/a.py", "test_WhoLeaves_IsEvicted", 1), ("tests/a.py", "test_AWholeStep_IsSent", 0)]:
            text = f"TEST(Suite, {name}) {{}}\n" if path.endswith(".cc") else f"    def {name}(self):\n"
            with self.subTest(name):
                over = language.check({path: text}, NAMES).get((path, "test-name"))
                self.assertEqual(over.amount if over else 0, count)


class Classes(unittest.TestCase):
    def methods(self, body, kind="struct"):
        return sizes.public_functions(body, kind)

    def test_PublicFunctions_AreCounted(self):
        for body, count in [
                ("void f(); int g(int x) const { return h(x); } int x;", 2), ("explicit A(int x) : x_{x}, y_{g(x)} {} ~A();", 2),
                ("int x{0}; int y = f(1); std::array<int, 2> z{f(1)};", 0), ("std::function<void(int)> f; std::vector<int (*)(int)> g;", 0),
                ("bool operator==(const A& b) const = default; A(const A&) = delete; bool operator<(A b); int operator()(int);", 3),
                ("using F = int (*)(int); friend void f(A); struct B { int x(); }; enum class E { kA };", 0),
                ("template <class T, int N = 3> std::array<T, N> f(std::span<T> x); [[nodiscard]] bool g() const;", 2),
                ("void f(std::function<void(int)> x = [](int) {}); void g();", 2)]:
            with self.subTest(body):
                self.assertEqual(self.methods(body), count)

    def test_OtherAccess_IsNotCounted(self):
        self.assertEqual(self.methods("void f(); public: void g(); void h() {} private: void i(); protected: void j();", "class"), 2)
        self.assertEqual(self.methods("void f(); private: void i(); public: A(); std::a::b c();"), 3)

    def test_OverTheLimits_AreFoundByClass(self):
        many = "".join(f"  void f{i}();\n" for i in range(31))
        found = sizes.check({"server/a.h": HEADER + f"class B;\nenum class C {{ kA }};\nstruct A final : B {{\n{many}}};\n",
                             "server/b.h": HEADER + "struct D {\n" + "\n" * 500 + "};\n"})
        self.assertEqual({key: (over.amount, over.faults[0][1]) for key, over in found.items()},
                         {("server/a.h:A", "class-methods"): (31, 4), ("server/b.h:D", "class-lines"): (502, 2)})


class Sizes(unittest.TestCase):
    def test_OfFolders_CountTheirOwnSourceFiles(self):
        texts = {f"server/a{i}.cc": "int x;\n" for i in range(30)} | {"server/b/c.cc": "", "server/README.md": "", "server/a.py": ""}
        self.assertEqual(sizes.check(texts), {})
        found = sizes.check(texts | {"server/d.capnp": ""})
        self.assertEqual([(key, over.amount) for key, over in found.items()], [(("server/", "folder-size"), 31)])

    def test_OfComments_AreColumns(self):
        text = f"// {'x' * 117}\n// {'x' * 118}\nint x;  // {'y' * 112}\nf(\"{'x' * 120}\");\n"
        self.assertEqual([line for line, _ in sizes.long_comments(text)], [2, 3])


class Ratchet(unittest.TestCase):
    FOUND = {("a.cc", "sentence"): ratchet.Over(2, [("a.cc", 3, "long"), ("a.cc", 5, "long")]),
             ("a.h:A", "class-lines"): ratchet.Over(600, [("a.h", 1, "A has 600")])}
    LISTED = {("a.cc", "sentence"): 2, ("a.h:A", "class-lines"): 600}

    def test_Equal_FindsNothing(self):
        self.assertEqual(list(ratchet.compare(self.FOUND, self.LISTED)), [])

    def test_More_FindsAllFaultsOfThePlace(self):
        found = list(ratchet.compare(self.FOUND, {("a.cc", "sentence"): 1}))
        self.assertEqual([(path, line, rule) for path, line, rule, _ in found],
                         [("a.cc", 3, "sentence"), ("a.cc", 5, "sentence"), ("a.h", 1, "class-lines")])
        self.assertIn("(2 here, ratchet.txt allows 1)", found[0][3])

    def test_Less_FindsTheAmount(self):
        found = list(ratchet.compare(self.FOUND, self.LISTED | {("a.cc", "sentence"): 3, ("gone.h:B", "class-lines"): 501}))
        self.assertEqual([(path, rule) for path, _, rule, _ in found], [("a.cc", "ratchet"), ("gone.h", "ratchet")])

    def test_Shrunk_AddsNothingAndRaisesNothing(self):
        self.assertEqual(ratchet.shrunk(self.FOUND, {("a.cc", "sentence"): 5, ("a.h:A", "class-lines"): 550, ("b.cc", "sentence"): 1}),
                         {("a.cc", "sentence"): 2, ("a.h:A", "class-lines"): 550})

    def test_Moved_KeepsAmounts(self):
        self.assertEqual(ratchet.moved(self.LISTED, {"a.h": "b/c.h"}), {("a.cc", "sentence"): 2, ("b/c.h:A", "class-lines"): 600})

    def test_NewRule_IsListedOnce(self):
        listed = ratchet.with_rule(self.FOUND, {("a.cc", "sentence"): 1}, "class-lines")
        self.assertEqual(listed, {("a.cc", "sentence"): 1, ("a.h:A", "class-lines"): 600})
        with self.assertRaises(ValueError):
            ratchet.with_rule(self.FOUND, listed, "sentence")

    def test_Text_IsReadAsItWasWritten(self):
        self.assertEqual(ratchet.read(ratchet.text_of("# head\n", self.LISTED), lint.RATCHETED), self.LISTED)
        for text in ("a.cc sentence\n", "a.cc nothing 3\n", "a.cc sentence -1\n"):
            with self.subTest(text), self.assertRaises(ValueError):
                ratchet.read(text, lint.RATCHETED)


if __name__ == "__main__":
    unittest.main()

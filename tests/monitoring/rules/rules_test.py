#!/usr/bin/env python3
"""Rules of Prometheus: they are valid, they do what their unit tests say, they use metrics of the catalog alone, and each
alert has a section in the runbook and two cases in the unit tests, one of them silent.

    rules_test.py SOURCE_TREE [unittest arguments]

Skipped where python3-yaml or Prometheus is not installed (deploy/setup.sh --tests).
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SOURCE / "tests/integration"))
import metric_tables  # noqa: E402
import promql  # noqa: E402

try:
    import yaml
except ImportError:
    print("rules_test: skipped: there is no python3-yaml (deploy/setup.sh --tests)")
    sys.exit(77)

RULES = SOURCE / "monitoring/rules"
TESTS = SOURCE / "tests/monitoring/rules"
OF_PROMETHEUS = {"up"}
OF_EVERY_SERIES = {"job", "instance"}


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules():
    return [rule for path in sorted(RULES.glob("*.yml")) for group in load(path)["groups"] for rule in group["rules"]]


def alerts():
    return [rule for rule in rules() if "alert" in rule]


class PromtoolTest(unittest.TestCase):
    def setUp(self):
        if shutil.which("promtool") is None:
            self.skipTest("there is no promtool (deploy/setup.sh --tests)")

    def promtool(self, *arguments):
        return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)

    def test_TheConfigurationAndItsRulesAreValid(self):
        for arguments in (["check", "config", SOURCE / "monitoring/prometheus.yml"], ["check", "rules", *sorted(RULES.glob("*.yml"))]):
            ended = self.promtool(*arguments)
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def test_TheRulesDoWhatTheirUnitTestsSay(self):
        files = sorted(TESTS.glob("*_test.yml"))
        self.assertEqual(len(files), 2)
        ended = self.promtool("test", "rules", *files)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def test_AWrongExpectationFails(self):
        # Shows that promtool reports a failure where there is one.
        text = (TESTS / "recording_test.yml").read_text(encoding="utf-8").replace("../../..", str(SOURCE)).replace("value: 0.25", "value: 0.26")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "wrong.yml"
            path.write_text(text, encoding="utf-8")
            self.assertEqual(self.promtool("test", "rules", path).returncode, 1)


class RulesTest(unittest.TestCase):
    def test_EveryRuleUsesMetricsAndLabelsOfTheCatalog(self):
        exported = metric_tables.exported()
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        self.assertGreater(len(rules()), 25)
        for rule in rules():
            expression = rule["expr"]
            for word in promql.words(expression):
                self.assertTrue(word in exported or word in recorded | OF_PROMETHEUS, f"{word} in {expression}")
            labels = set(OF_EVERY_SERIES)
            for name, matchers in promql.selectors(expression):
                known = exported.get(name, {})
                labels |= set(known) | ({"direction"} if name in recorded else set())
                for label, values in matchers:
                    self.assertIn(label, set(known) | OF_EVERY_SERIES, expression)
                    self.assertLessEqual(set(values), set(known.get(label) or values), expression)
            self.assertLessEqual(promql.grouping_labels(expression), labels, expression)

    def test_EveryRecordedSeriesIsTestedAndHasOneNamePattern(self):
        tested = (TESTS / "recording_test.yml").read_text(encoding="utf-8")
        for rule in rules():
            if "record" in rule:
                self.assertRegex(rule["record"], r"^(job|instance|job_instance):millrace_[a-z_]+:[a-z0-9_]+$")
                self.assertRegex(tested, rf"expr: .*{rule['record']}")

    def test_EveryAlertHasASeverityASentenceAndASectionOfTheRunbook(self):
        sections = re.findall(r"^## (Millrace\w+)$", (RULES / "RUNBOOK.md").read_text(encoding="utf-8"), re.MULTILINE)
        severities = {}
        for rule in alerts():
            severities.setdefault(rule["alert"], []).append(rule["labels"]["severity"])
        self.assertEqual(sorted(sections), sorted(severities))
        text = (RULES / "RUNBOOK.md").read_text(encoding="utf-8")
        for rule in alerts():
            severity = rule["labels"]["severity"]
            self.assertIn(severity, ("critical", "warning"))
            section = text.split(f"\n## {rule['alert']}\n")[1].split("\n## ")[0]
            first_words = " or ".join(sorted(severities[rule["alert"]])).capitalize()
            self.assertTrue(section.startswith(f"\n*{first_words}.* "), rule["alert"])
            self.assertRegex(section, r"\n1\. |\n\| ", "there is no action")
            self.assertEqual(rule["annotations"]["runbook"], f"monitoring/rules/RUNBOOK.md#{rule['alert'].lower()}")
            self.assertTrue(rule["annotations"]["summary"])

    def test_EachReasonOfAnEndIsSilentOrHasAnActionInTheRunbook(self):
        reasons = set(metric_tables.exported()["millrace_shard_jobs_ended_total"]["reason"])
        expression = next(rule["expr"] for rule in alerts() if rule["alert"] == "MillraceJobAborted")
        silent = set(re.search(r'reason!~"([\w|]+)"', expression)[1].split("|"))
        self.assertEqual(silent, {"finished", "ended", "superseded", "shutdown"})
        section = (RULES / "RUNBOOK.md").read_text(encoding="utf-8").split("\n## MillraceJobAborted\n")[1].split("\n## ")[0]
        rows = re.findall(r"^\| ([\w, ]+) \|", section, re.MULTILINE)[1:]
        self.assertEqual({reason for row in rows for reason in row.split(", ")}, reasons - silent)

    def test_EveryAlertHasACaseThatFiresAndOneThatDoesNot(self):
        fires, silent = set(), set()
        for test in load(TESTS / "alerts_test.yml")["tests"]:
            for case in test.get("alert_rule_test", []):
                (fires if case["exp_alerts"] else silent).add(case["alertname"])
        names = {rule["alert"] for rule in alerts()}
        self.assertEqual(fires, names)
        self.assertEqual(silent, names)


if __name__ == "__main__":
    unittest.main()

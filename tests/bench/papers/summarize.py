#!/usr/bin/python3
"""Writes a page of results/ for the JSON of each full run: the paper's claims, the results here, and reasons for
differences. results/README.md lists the pages, and the scripts without a full run.

    tests/bench/papers/summarize.py            writes the pages
    tests/bench/papers/summarize.py --check    compares; 1 where a page differs from the JSON's

Needs Python's standard library alone.
"""

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
SCRIPTS = RESULTS.parent
COLUMNS_MAX = 120
SENTENCE_WORDS_MAX = 25
HEAD = """# Results of full runs

A page for each script of [papers](../README.md), with its plots. `summarize.py` makes these pages from the JSON files
beside them: do not edit them. Compare ratios within a run: each page names the machine and the commit of the programs.

"""


def wrapped(text, indent=""):
    # A vertical bar or an asterisk of a finding is no markup.
    plain = re.sub(r"([*_|<>])", r"\\\1", " ".join(text.split()))
    return textwrap.fill(plain, COLUMNS_MAX, initial_indent=indent, subsequent_indent=" " * len(indent), break_long_words=False, break_on_hyphens=False)


def listed(label, text, indent):
    """The lines of a finding. Figures between semicolons are a list where they would make one long sentence."""
    pieces = text.split("; ")
    if len(pieces) < 2 or len(text.split()) <= SENTENCE_WORDS_MAX:
        return [wrapped(f"{label}: {text}", indent)]
    return [f"{indent}{label}:", *(wrapped(piece, f"  {indent}") for piece in pieces)]


def read(path):
    report = json.loads(path.read_text(encoding="utf-8"))
    if report["quick"]:
        raise ValueError(f"{path.name} is of a run with --quick")
    return report


def page(path):
    """Returns the page of one run."""
    report = read(path)
    lines = [f"# {path.stem}", "", wrapped(f"{report['figure']}. {report['source']}."), "",
             wrapped(f"Seed {report['seed']}, {report['took_s']:.0f} s, commit {report['commit']}, on {report['machine']}.")]
    lines += [wrapped(report["note"])] if report.get("note") else []
    lines += ["", *(f"![{image.stem}]({image.name})" for image in images(path))]
    for finding in report["findings"]:
        lines += ["", wrapped(f"Paper: {finding['paper']}", "- "), *listed("Here", finding["here"], "  - ")]
        lines += [wrapped(f"Why: {finding['why']}", "  - ")] if finding["why"] else []
    for left in report["left_out"]:
        lines += ["", wrapped(f"Left out: {left['what']}: {left['why']}", "- ")]
    return "\n".join(lines) + "\n"


def images(path):
    """The plots of a script: of its own name, and of the figures that it names as well (gspar_fig1_3 has gspar_fig2, gspar_fig3)."""
    text = (SCRIPTS / f"{path.stem}.py").read_text(encoding="utf-8")
    return [image for image in sorted(path.parent.glob("*.png"))
            if image.stem == path.stem or (not (path.parent / f"{image.stem}.json").exists() and f'"{image.stem}.png"' in text)]


def index(paths):
    """Returns the list of the pages, and of the scripts without one."""
    rows = ((path.stem, read(path)) for path in paths)
    text = HEAD + "".join(f"- [{name}]({name}.md):\n{wrapped(report['figure'] + '. ' + report['source'] + '.', '  ')}\n" for name, report in rows)
    scripts = {path.stem for path in SCRIPTS.glob("*.py") if "here = Experiment(" in path.read_text(encoding="utf-8")} - {Path(__file__).stem}
    missing = sorted(scripts - {path.stem for path in paths})
    return text + "".join(["\nWithout a full run yet:\n\n", *(f"- `{name}.py`\n" for name in missing)] if missing else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    runs = sorted(RESULTS.glob("*.json"))
    pages = {RESULTS / "README.md": index(runs)} | {path.with_suffix(".md"): page(path) for path in runs}
    stale = [target for target, text in pages.items() if not target.exists() or target.read_text(encoding="utf-8") != text]
    stale += sorted(set(RESULTS.glob("*.md")) - pages.keys())
    if not arguments.check:
        for target in stale:
            if target in pages:
                target.write_text(pages[target], encoding="utf-8")
            else:
                target.unlink()
    elif stale:
        print(f"run {Path(__file__).name}: these pages differ from those of the JSON: {', '.join(path.name for path in stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The ratchet: what is over a limit today, by file (or folder, or class) and rule, as lines `place rule amount` of ratchet.txt.

An amount may only shrink. More than it is a finding; less than it is one too, until `lint.py --update-ratchet` writes the lower amount.
"""

import subprocess
from dataclasses import dataclass, field


@dataclass
class Over:
    """What one place has over the limit of one rule: its amount, and (path, line, message) of each fault."""

    amount: int
    faults: list = field(default_factory=list)


def read(text, rules):
    """{(place, rule): amount} of ratchet.txt."""
    listed = {}
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        if len(fields) != 3 or fields[1] not in rules or not fields[2].isdigit():
            raise ValueError(f"ratchet.txt:{number}: want 'place rule amount', with a rule of {', '.join(sorted(rules))}")
        listed[(fields[0], fields[1])] = int(fields[2])
    return listed


def compare(found, listed):
    """(path, line, rule, message) of what is over its listed amount, and of amounts that can shrink; found is {(place, rule): Over}."""
    for (place, rule), over in sorted(found.items()):
        limit = listed.get((place, rule), 0)
        if over.amount > limit:
            note = f" ({over.amount} here, ratchet.txt allows {limit})" if limit else ""
            for path, line, message in over.faults:
                yield path, line, rule, message + note
    for (place, rule), limit in sorted(listed.items()):
        now = found[(place, rule)].amount if (place, rule) in found else 0
        if now < limit:
            yield place.split(":", 1)[0], 1, "ratchet", f"{place}: {rule} is {now} now, ratchet.txt says {limit}: run --update-ratchet"


def moved(listed, moves):
    """The ratchet with the places of files that moved; moves is {old path: new path}."""
    def place_of(place):
        path, colon, rest = place.partition(":")
        return moves.get(path, path) + colon + rest
    return {(place_of(place), rule): amount for (place, rule), amount in listed.items()}


def git_moves(root):
    """{old path: new path} of the files that git sees moved since the last commit; empty outside of a checkout."""
    run = subprocess.run(["git", "-C", root, "diff", "--relative", "--name-status", "-M", "--diff-filter=R", "HEAD"],
                         capture_output=True, text=True, check=False)
    fields = [line.split("\t") for line in run.stdout.splitlines()] if run.returncode == 0 else []
    return {old: new for _, old, new in fields}


def shrunk(found, listed):
    """The ratchet with today's amounts, where those are lower."""
    now = {key: min(limit, found[key].amount) for key, limit in listed.items() if key in found}
    return {key: amount for key, amount in now.items() if amount > 0}


def with_rule(found, listed, rule):
    """The ratchet with today's amounts of a rule that it does not list yet."""
    if any(name == rule for _, name in listed):
        raise ValueError(f"ratchet.txt has lines of {rule} already: they may only shrink")
    return listed | {key: over.amount for key, over in found.items() if key[1] == rule and over.amount > 0}


def text_of(head, listed):
    return head + "".join(f"{place} {rule} {amount}\n" for (place, rule), amount in sorted(listed.items()))

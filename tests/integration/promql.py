"""The names in an expression of PromQL: metrics, their matchers, the labels of groupings.

Covers the forms that the rules and dashboards of monitoring/ use: one level of braces, no escaped quotes.
"""

import re

# The functions and keywords that rules and panels use. Another one has to be added here.
KEYWORDS = frozenset("sum avg min max count abs absent time rate increase round histogram_quantile avg_over_time by on or and unless offset group_left label_replace".split())
NAME = re.compile(r"(?<![\w:.])[A-Za-z_][\w:]*")
SELECTOR = re.compile(r"(?<![\w:.])([A-Za-z_][\w:]*)\s*(?:\{([^}]*)\})?(?!\s*\()(?!\w)")
MATCHER = re.compile(r'(\w+)\s*(=~|=|!~|!=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


TEXT = re.compile(r'(\{[^}]*\})|"[^"]*"')  # of label_replace: outside of braces


def _without_groupings(expression):
    return GROUPING.sub(" ", TEXT.sub(lambda found: found[1] or " ", expression))


def selectors(expression):
    """Returns every metric with its matchers: (name, [(label, values)]). Values of `=~` are split at the bars; patterns are left out."""
    found = []
    for name, matchers in SELECTOR.findall(_without_groupings(expression)):
        if name in KEYWORDS:
            continue
        listed = []
        for label, _, value in MATCHER.findall(matchers):
            listed.append((label, [one for one in value.split("|") if re.fullmatch(r"\w+", one)]))
        found.append((name, listed))
    return found


def words(expression):
    """Returns the names of all metrics, and each word that is no keyword of PromQL."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", _without_groupings(expression))
    return {word for word in NAME.findall(bare) if word not in KEYWORDS}


def grouping_labels(expression):
    return {label for labels in GROUPING.findall(expression) for label in re.findall(r"\w+", labels)}

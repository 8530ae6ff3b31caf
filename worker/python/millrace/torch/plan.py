"""The plan of a job: which parameters travel dense, the options of each, and their order."""

import fnmatch
from dataclasses import dataclass, field

# A smaller parameter travels whole: RedSync's limit [RedSync19, 3.3], which selection by_size has as well.
DENSE_BELOW = 4096
SELECT = "topk:0.01"  # by default
NAMES_SHOWN = 5  # of the parameters that travel dense, in the log
RULE_OPTIONS = ("select", "reselect", "codec_up", "codec_down", "priority", "output_layer")
# Options of the job that a tensor may override.
COMPRESSION = ("select", "reselect", "codec_up", "codec_down")


@dataclass(frozen=True)
class PlannedTensor:
    """Describes a tensor of the job.

    late   it travels with its neighbours, so its update arrives after the last of them is pushed.
    dense  why it travels whole; empty: its entries are selected.
    """

    name: str
    dimension: int
    options: dict = field(default_factory=dict)
    late: bool = False
    dense: str = ""


@dataclass(frozen=True)
class Plan:
    """Holds the tensors in the order of the job, and the compression options of the job itself."""

    tensors: list
    job: dict

    def dense_text(self):
        """Returns a text for people: which parameters travel dense, and why."""
        by_reason = {}
        for tensor in self.tensors:
            if tensor.dense:
                by_reason.setdefault(tensor.dense, []).append(tensor)
        texts = [f"{len(dense)} of them with {sum(tensor.dimension for tensor in dense)} entries travel dense, {why}: "
                 f"{_shortened([tensor.name for tensor in dense])}" for why, dense in by_reason.items()]
        return "; ".join(texts) or "none travels dense"


def _shortened(names):
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def check_rules(rules):
    """Raises  TypeError: a rule has an option that no tensor has."""
    for pattern, options in rules.items():
        for name in options:
            if name not in RULE_OPTIONS:
                raise TypeError(f"rules: '{pattern}' has '{name}'; a rule may have {', '.join(RULE_OPTIONS)}")


def rule_of(rules, name):
    """Returns the options of the first pattern that the name matches (fnmatch, case counts), or None."""
    for pattern, options in rules.items():
        if fnmatch.fnmatchcase(name, pattern):
            return {option: value for option, value in options.items() if value is not None}
    return None


def unmatched_patterns(rules, names):
    """Returns the patterns that match no name."""
    return [pattern for pattern in rules if not any(fnmatch.fnmatchcase(name, pattern) for name in names)]


def plan_tensors(sizes, compression, fuse_below, dense_below=DENSE_BELOW, rules=None, times_of=lambda size: ""):
    """Plans a job of parameters.

    sizes        {name: entries} in the order of the model; parameters without entries are left out.
    compression  those of COMPRESSION that the caller gave; "select" is among them.
    fuse_below   option of the job: the library sends neighbours below it together.
    dense_below  a parameter with fewer entries, and without a rule, is sent dense. 0: none is.
    times_of     function of a size that returns the planner's times as a text, for the reason (verdict.PlannedTimes). They
                 change no plan: each rank measures its own, and all ranks need one plan.
    Returns      the Plan. The last parameters of the model come first, as the backward pass computes them. Small dense
                 parameters come behind the others: they are neighbours, so the library sends them together.
    Raises       ValueError: a pattern matches no parameter.

    Where some parameters are dense, the job itself is dense and without loss, and each other parameter has the
    compression as its own. The library fuses tensors without options of their own alone.
    """
    rules = rules or {}
    check_rules(rules)
    if unmatched := unmatched_patterns(rules, sizes):
        raise ValueError(f"rules: no parameter matches {', '.join(map(repr, unmatched))}; the parameters are "
                         f"{', '.join(sizes)}")
    ruled = {name: rule_of(rules, name) for name in sizes}
    small = {name for name, size in sizes.items() if size < dense_below and ruled[name] is None}
    if compression["select"] == "none":
        small = set()
    first, last = [], []
    for name, size in reversed(sizes.items()):
        if size == 0:
            continue
        options = dict(ruled[name] or {})
        if small and name not in small:
            options = {**compression, **options}
        fused = not any(key in options for key in COMPRESSION) and size < fuse_below
        why = ""
        if name in small:
            times = times_of(size)
            why = f"smaller than dense_below={dense_below}" + (f" ({times})" if times else "")
        elif options.get("select", compression["select"]) == "none":
            why = "by a rule" if "select" in (ruled[name] or {}) else 'by select="none"'
        tensor = PlannedTensor(name, size, options, late=fused, dense=why)
        (last if name in small else first).append(tensor)
    return Plan(first + last, {"select": "none"} if small else dict(compression))

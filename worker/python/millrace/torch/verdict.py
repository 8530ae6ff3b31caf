"""The planner's verdict on a running job: whether dense gradients would be faster. Its times of small parameters."""

import math

# Steps between which the wait is measured: the first ones connect, and the library measures its speeds.
BEGIN, END = 3, 13
ENTRIES_MAX = 1 << 32  # that the planner takes


class Verdict:
    """Compares the time that a step waits, measured, with the time of dense gradients by the planner's cost model.

    advise     millrace.advise(), or None: then there is no verdict.
    entries    of all parameters. Over ENTRIES_MAX there is no verdict.
    shards     that sum; None: the ranks sum among themselves, and dense gradients by the fastest dense allreduce.
    link_rate  bits a second, where the user stated them (option link_rate); 0: not known.

    A dense exchange would overlap with the backward pass too. The whole of its time is compared, so the verdict "dense"
    is on the safe side. Except over peers: there each parameter costs the messages of its own sum, dense or not, and the
    model has one sum of all. Without the rate of the link there is only a rate from which on dense would be faster.
    """

    def __init__(self, advise, entries, workers, shards, link_rate):
        self._advise = advise if entries <= ENTRIES_MAX else None
        self._link_rate = link_rate
        self._shape = {"dimension": entries, "workers": workers, "shards": shards or 1}
        self._over_peers = shards is None
        self._before = None
        self.text = ""  # "dense would be faster: ...", or empty
        self.dense_from_rate = 0.0  # bits a second; infinity: at no rate; 0: not known yet

    def look(self, steps, seconds_waited):
        """Notes the figures behind a step, sums since the start. Returns whether this was the last step to look at."""
        if self._advise is None or steps not in (BEGIN, END):
            return False
        if steps == BEGIN:
            self._before = seconds_waited
            return False
        self._judge((seconds_waited - self._before) / (END - BEGIN))
        return True

    def line(self):
        """Returns the verdict as a line of the log."""
        if self.text:
            return self.text
        if math.isinf(self.dense_from_rate):
            return "dense gradients would not be faster on any link: adding them up alone would take longer than a step waits"
        stated = f"the link's {_rate(self._link_rate)} are less" if self._link_rate else "link_rate= tells the State the link's"
        return f"dense gradients would be faster on links over {_rate(self.dense_from_rate)}, by the cost model; {stated}"

    def _judge(self, waited):
        rate = self._link_rate or 1e9
        advice = self._advise(density=1.0, link_rate=rate, select="none", **self._shape)
        dense, remedy = advice.servers_dense, 'select="none"'
        if self._over_peers:
            dense = min((time for time in advice.ranking if time.dense), key=lambda time: time.seconds)
            remedy += f' and allreduce="{dense.algorithm}"'
        spare = waited - (dense.seconds - dense.transfer_seconds)
        self.dense_from_rate = rate * dense.transfer_seconds / spare if spare > 0 else math.inf
        if self._link_rate > self.dense_from_rate:
            self.text = (f"dense would be faster: a step waits {1e3 * waited:.1f} ms, and dense gradients would take "
                         f"{1e3 * dense.seconds:.1f} ms at {_rate(rate)}, by the cost model of millrace advise; "
                         f'try {remedy}')


# Of the selections whose first number is no number of entries.
_NO_DENSITY = ("threshold", "gspar_closed")


class PlannedTimes:
    """Has the planner's times of a parameter's exchange, of all entries and of the selected ones.

    advise     millrace.advise(), or None: no times.
    shards     as Verdict has them: without them the times are those of the fastest allreduces.
    link_rate  bits a second; 0: not known, and no times.
    select, codec  of the selected entries, as texts.
    Cost       some ms for each size that is new.
    """

    def __init__(self, advise, workers, shards, link_rate, select, codec):
        self._advise = advise if link_rate else None
        self._over_peers, self._rate = shards is None, link_rate
        self._shape = {"workers": workers, "shards": shards or 1, "link_rate": link_rate, "codec": codec}
        self._selection, *numbers = select.split(":")
        self._number = numbers[0] if numbers and self._selection not in _NO_DENSITY else ""
        self._texts = {}  # by size

    def of(self, size):
        """Returns the times of a parameter of that size as a text; an empty one where the model has none."""
        if size not in self._texts:
            self._texts[size] = self._text(size)
        return self._texts[size]

    def _text(self, size):
        if self._advise is None or not self._number:
            return ""
        number = float(self._number)
        density = number if number < 1 else min(1.0, number / size)
        try:
            advice = self._advise(size, density, select=self._selection, **self._shape)
        except RuntimeError:  # JobError: the model has no such selection or codec
            return ""
        dense, selected = advice.servers_dense, advice.servers
        if self._over_peers:
            sums = [time for time in advice.ranking if not time.algorithm.startswith("servers")]
            dense, selected = (min((time for time in sums if time.dense == is_dense), key=lambda time: time.seconds)
                               for is_dense in (True, False))
        return (f"{size} entries: {1e6 * dense.seconds:.3g} us dense and {1e6 * selected.seconds:.3g} us selected at "
                f"{_rate(self._rate)}, by the cost model")


def _rate(bits):
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"

"""The planner's verdict on a running job: whether dense gradients would be faster."""

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


def _rate(bits):
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"

"""Breadth-first search of an explicit-state model: shortest traces to violations, and whether every state can be completed.

successors(state)  yields (label, state) or (label, Violation)
recover(state)     one step (label, state) that the parties make by themselves after all packets in flight are lost; None: stuck
finished(state)    nothing is left to do
"""

import time
from collections import deque


class Violation:
    def __init__(self, message):
        self.message = message


def _trace(parents, state):
    steps = []
    while parents[state] is not None:
        state, label = parents[state]
        steps.append(label)
    return steps[::-1]


def _show(kind, name, trace):
    print(f"{name}: {kind}; shortest trace, {len(trace)} steps:")
    for number, label in enumerate(trace, 1):
        print(f"   {number}. {label}")


def explore(name, initial, successors, recover, finished, states_max, quiet):
    """Returns "clean", "violation", "hang" or "cut" (clean as far as it went)."""
    begun = time.monotonic()
    parents = {initial: None}
    queue = deque([initial])
    while queue and len(parents) <= states_max:
        state = queue.popleft()
        for label, reached in successors(state):
            if isinstance(reached, Violation):
                if not quiet:
                    _show(f"violation: {reached.message}", name, _trace(parents, state) + [label])
                return "violation"
            if reached not in parents:
                parents[reached] = (state, label)
                queue.append(reached)
    completes = set()
    for state in parents:
        path, at = [], state
        while at not in completes and not finished(at):
            path.append(at)
            step = recover(at) if len(path) < 200 else None
            if step is None:
                if not quiet:
                    _show("hang: nothing completes it", name, _trace(parents, state))
                return "hang"
            at = step[1]
        completes.update(path)
    print(f"{name}: clean{', cut off' if queue else ''}; {len(parents)} states, {time.monotonic() - begun:.1f} s")
    return "cut" if queue else "clean"

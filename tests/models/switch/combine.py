"""Role combine: a rack's switch adds up, the shard decides (protocol/SWITCH.md, S7).

Workers A (two fragments) and B (one) are in a rack, C sends to the shard. One slot, turns one after another, one
epoch: the effects of an epoch are no concern of this model. The rack's group travels in two parts. Rack and shard may
restart. Any packet may arrive at any time, several times, or never. A unit that the rack hands on raw is the
same as one that its worker sent past it, so there is one kind of raw unit.

The one index that matters is in A's and C's contributions: a rack that re-selects may cut it ("cut"), C brings it into the update all the same.

A rule can be left out (--without), to see the fault that it prevents:
  disjoint     a group is accepted though units of it are in
  hash         parts of two groups of one turn are put together
  complete     a group goes up before all units are in
  past         nothing goes past the rack, nor raw
  mask         a worker infers the applied entries from the update alone
  in-result    which entries the rack kept is not in the result: receipts have it, from the rack, or from the shard as long as it has the
               result (what S7.5 replaced)
"""

import argparse
import sys

from checker import Violation, explore

A0, A1, B, C = 1, 2, 4, 8
RACK = A0 | A1 | B
ALL = RACK | C
UNITS = {A0: ("A.0", 0), A1: ("A.1", 0), B: ("B", 1), C: ("C", 2)}
NAMES = "ABC"


def put(items, at, item):
    return items[:at] + (item,) + items[at + 1:]


class Model:
    """State: (workers, rack, shard, parts, results, receipts)
      workers   by worker the results that it has taken, a tuple of (raw units, group or None)
      rack      (life, turn, units in the sum, flushed, group or None); group: (life of the rack, cut)
      shard     (life, turn, raw units in, group in, parts buffered (group, mask) or None, result of the turn before or None,
                 that result's receipt is here)
      parts     in flight: (turn, group, units in it, part)
      results   in flight: (life of the shard, turn, result)
      receipts  in flight: (turn, group): the rack's
    """

    def __init__(self, turns, rack_lives, shard_lives, without):
        self.turns, self.rack_lives, self.shard_lives, self.without = turns, rack_lives, shard_lives, without

    def initial(self):
        return (((), (), ()), (0, 0, 0, False, None), (0, 0, 0, None, None, None, False), frozenset(), frozenset(), frozenset())

    def canonical(self, state):
        workers, rack, shard, parts, results, receipts = state
        least = min(len(taken) for taken in workers)
        parts = frozenset(part for part in parts if part[0] == shard[1])
        results = frozenset(result for result in results if result[0] == shard[0] and result[1] >= least)
        receipts = frozenset(receipt for receipt in receipts if receipt[0] >= least)
        return (workers, rack, shard, parts, results, receipts)

    # The rack.
    def rack_moves(self, state):
        workers, (life, turn, units, flushed, group), shard, parts, results, receipts = state
        for unit, (name, worker) in UNITS.items():
            position = len(workers[worker])
            if unit == C or position >= self.turns or position < turn:
                continue
            label = f"rack gets {name} of turn {position}"
            if position > turn:
                yield label, (workers, (life, position, unit, False, None), shard, parts, results, receipts)
            elif not flushed and group is None and not units & unit:
                yield label, (workers, (life, turn, units | unit, False, None), shard, parts, results, receipts)
            if position == turn and not flushed and group is None:
                yield label + " with FLUSH", (workers, (life, turn, 0, True, None), shard, parts, results, receipts)
        ready = units == RACK or ("complete" in self.without and units != 0)
        if group is None and not flushed and ready:
            for cut in (False, True):
                mine = (life, cut)
                sent = frozenset((turn, mine, units, part) for part in (0, 1))
                yield f"rack sends turn {turn} up{', cut' if cut else ''}", (
                    workers, (life, turn, units, False, mine), shard, parts | sent, results, receipts | {(turn, mine)})
        if group is not None:
            again = frozenset((turn, group, units, part) for part in (0, 1))
            if not again <= parts or (turn, group) not in receipts:
                yield f"rack sends turn {turn} again", (workers, (life, turn, units, flushed, group), shard, parts | again, results,
                                                        receipts | {(turn, group)})
        if life + 1 < self.rack_lives:
            yield "rack restarts", (workers, (life + 1, 0, 0, False, None), shard, parts, results, receipts)

    # The shard.
    def close(self, state):
        workers, rack, (life, turn, raw, group, _, _, _), parts, results, receipts = state
        result = (raw, group)
        return (workers, rack, (life, turn + 1, 0, None, None, result, group is not None), parts, results | {(life, turn, result)},
                receipts)

    def accept(self, state, raw, group):
        workers, rack, (life, turn, _, _, buffered, kept, told), parts, results, receipts = state
        state = (workers, rack, (life, turn, raw, group, buffered, kept, told), parts, results, receipts)
        inside = raw | (RACK if group is not None else 0)
        return self.close(state) if inside == ALL else state

    def shard_moves(self, state):
        workers, rack, (life, turn, raw, group, buffered, kept, told), parts, results, receipts = state
        for unit, (name, worker) in UNITS.items():
            if len(workers[worker]) != turn or turn >= self.turns:
                continue
            if "past" in self.without and unit != C:
                continue
            if not raw & unit and not (unit & RACK and group is not None):
                yield f"shard gets {name} of turn {turn} raw", self.accept(state, raw | unit, group)
        for part_turn, part_group, units, part in parts:
            if part_turn != turn or group is not None:
                continue
            if "disjoint" not in self.without and raw & RACK:
                continue
            before = buffered
            if before is None or (before[0][0] != part_group and "hash" not in self.without):
                before = ((part_group, part_group), 0)
            if before[1] >> part & 1:
                continue
            of_parts = put(before[0], part, part_group)
            whole = before[1] | 1 << part
            label = f"shard gets part {part} of the rack's turn {turn} (life {part_group[0]}{', cut' if part_group[1] else ''})"
            if whole != 3:
                yield label, (workers, rack, (life, turn, raw, group, (of_parts, whole), kept, told), parts, results, receipts)
                continue
            if raw & RACK:
                yield label, Violation("units of the group are in: added twice")
            elif of_parts[0] != of_parts[1]:
                yield label, Violation("the sum is of two groups")
            elif units != RACK:
                yield label, Violation("a unit that counts as in is not in the sum")
            else:
                yield label, self.accept(state, raw, part_group)
        if life + 1 < self.shard_lives:
            yield "shard restarts, all say hello", self.restart(state)

    def restart(self, state):
        """A new incarnation: the turn is recomputed; a result that only some workers have is fetched from one of them. All packets in flight
        are of another incarnation. (A worker with the result reports the result, not the receipts.)"""
        workers, rack, shard, parts, results, receipts = state
        most, least = max(map(len, workers)), min(map(len, workers))
        kept = next(taken[-1] for taken in workers if len(taken) == most) if most != least else None
        fetched = frozenset() if kept is None else frozenset({(shard[0] + 1, most - 1, kept)})
        return (workers, rack, (shard[0] + 1, most, 0, None, None, kept, False), frozenset(), fetched, receipts)

    # Workers.
    def take(self, state, worker, turn, result):
        workers, rack, shard, parts, results, receipts = state
        raw, group = result
        mine = sum(unit for unit, (_, owner) in UNITS.items() if owner == worker)
        if worker < 2 and group is not None:
            if "in-result" in self.without:
                from_rack = (turn, group) in receipts
                from_shard = shard[5] == result and shard[1] == turn + 1 and shard[6]
                if not (from_rack or from_shard):
                    return None
            elif "mask" in self.without and group[1] and worker == 0:
                return Violation("A's entry was cut by the rack, C's brought its index into the update: it is lost")
        elif raw & mine != mine:
            return Violation(f"{NAMES[worker]}'s contribution counts as in and is not")
        for other in range(3):
            if len(workers[other]) > turn and workers[other][turn] != result:
                return Violation(f"results of turn {turn} differ")
        taken = put(workers, worker, workers[worker] + (result,))
        return (taken, rack, shard, parts, results, receipts)

    def worker_moves(self, state):
        for life, turn, result in state[4]:
            for worker in range(3):
                if len(state[0][worker]) == turn and life == state[2][0]:
                    reached = self.take(state, worker, turn, result)
                    if reached is not None:
                        yield f"{NAMES[worker]} gets the result of turn {turn}", reached

    def successors(self, state):
        for moves in (self.rack_moves, self.shard_moves, self.worker_moves):
            for label, reached in moves(state):
                yield label, reached if isinstance(reached, Violation) else self.canonical(reached)

    def finished(self, state):
        return all(len(taken) == self.turns for taken in state[0])

    def recover(self, state):
        """The shard answers a worker that asks again; a rack that has its group sends it again, else units go past it."""
        workers, rack, shard, parts, results, receipts = state
        state = (workers, rack, shard, frozenset(), frozenset(), frozenset())
        life, turn, raw, group, _, kept, _ = shard
        behind = [worker for worker in range(3) if len(workers[worker]) == turn - 1]
        if behind:
            if kept is None:
                return None
            mine = frozenset({(rack[1], rack[4])}) if rack[4] is not None else frozenset()
            reached = self.take((workers, rack, shard, frozenset(), frozenset(), mine), behind[0], turn - 1, kept)
            if reached is None or isinstance(reached, Violation):
                return None
            return "result", self.canonical(reached)
        if "past" in self.without and group is None and not (rack[1] == turn and rack[3]):
            return "the rack's sum", self.canonical(self.accept(state, raw, (rack[0], False)))
        for unit in UNITS:
            if "past" in self.without and unit != C:
                continue
            if not raw & unit and not (unit & RACK and group is not None):
                return "raw", self.canonical(self.accept(state, raw | unit, group))
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rack-lives", type=int, default=2)
    parser.add_argument("--shard-lives", type=int, default=2)
    parser.add_argument("--without", action="append", default=[],
                        choices=["disjoint", "hash", "complete", "past", "mask", "in-result"])
    parser.add_argument("--expect", choices=["clean", "violation", "hang"], default="clean")
    parser.add_argument("--states-max", type=int, default=3_000_000)
    parser.add_argument("--quiet", action="store_true", help="no traces")
    options = parser.parse_args()
    model = Model(options.turns, options.rack_lives, options.shard_lives, frozenset(options.without))
    name = f"combine, {options.turns} turns" + "".join(f", without {rule}" for rule in options.without)
    verdict = explore(name, model.canonical(model.initial()), model.successors, model.recover, model.finished, options.states_max,
                      options.quiet)
    return 0 if verdict == options.expect else 1


if __name__ == "__main__":
    sys.exit(main())

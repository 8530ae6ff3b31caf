"""Decodes index codecs with Bloom filters (bloom_codecs.md)."""

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .bits import Fields
from .errors import LimitExceeded, Limits, require
from .random_numbers import Sequence, hash_offset, mix


class Filter(NamedTuple):
    """Holds a Bloom filter (bloom_codecs.md, "The filter")."""

    bits: int
    offsets: list[int]
    ones: bytes

    def probes(self, index: int) -> Iterator[int]:
        """Yields the bits of an index."""
        for offset in self.offsets:
            yield mix(index + offset & 0xFFFFFFFF) * self.bits >> 32

    def knows(self, index: int) -> bool:
        return all(self.ones[bit >> 3] >> (bit & 7) & 1 for bit in self.probes(index))


def known_indices(knows: Callable[[int], bool], dimension: int, expected: int) -> list[int]:
    """Returns the `expected` indices below the dimension that a filter knows, and refuses another number of them."""
    known = []
    for index in range(dimension):
        if knows(index):
            require(len(known) < expected, "bloom: the filter knows more indices than the code says")
            known.append(index)
    require(len(known) == expected, "bloom: the filter knows fewer indices than the code says")
    return known


def check_probed_dimension(dimension: int, limits: Limits) -> None:
    """Refuses a dimension that is too large to ask a filter for each of its indices (bloom_codecs.md)."""
    require(dimension <= 1 << 28, "bloom: the dimension is over 2^28")
    if dimension > limits.probed_dimension:
        raise LimitExceeded(f"bloom: the dimension {dimension} is over this reader's limit {limits.probed_dimension}")


def read_filter(take: Fields, seed: int, count: int, has_choice: bool) -> Filter:
    """Reads a filter to the section's end, and refuses one that no sender makes (bloom_codecs.md, "The filter")."""
    m, k = take.number(4), take.number(4)
    require(m >= 32 and m % 32 == 0, "bloom: the number of bits is not a multiple of 32")
    require(1 <= k <= 32, "bloom: the number of probes is not from 1 to 32")
    ones_bytes = take.bytes(m // 8)
    take.end()
    least = max(1, math.ceil((m - 33) * math.log(2) / (k + 0.5) - 0.001))
    most = math.floor((53 * m * math.log(2) if k == 1 else m * math.log(2) / (k - 0.5)) + 0.001)
    n = max(1, count) if has_choice else min(most, max(1, count))
    require(least <= n <= most, "bloom: no sender makes a filter of this size for the stated indices")
    if count == 0:
        n = 0
    ones_most = math.floor(min(n * k, m * (1 - math.exp(-n * k / m)) + 4 * math.sqrt(m)))
    require(sum(map(int.bit_count, ones_bytes)) <= ones_most, "bloom: too many bits of the filter are 1")
    return Filter(m, [hash_offset(seed, p) for p in range(k)], ones_bytes)


def bloom_p0(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `bloom_p0` (bloom_codecs.md, "bloom_p0")."""
    check_probed_dimension(dimension, limits)
    take = Fields(section)
    seed = take.number(8)
    return known_indices(read_filter(take, seed, count, has_choice=False).knows, dimension, count)


class Choice(NamedTuple):
    """Holds what a codec with a choice chooses from: `count` of the known indices."""

    known: list[int]
    count: int
    seed: int
    filter: Filter
    dimension: int


def bloom_with_choice(choose: Callable[[Choice], Iterable[int]]):
    """Returns the decoder of a codec whose `choose` returns the numbers of the decoded indices, increasing."""

    def decode_section(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
        check_probed_dimension(dimension, limits)
        take = Fields(section)
        seed, positives = take.number(8), take.number(4)
        require(count <= positives <= dimension, "bloom: `positives` is not from count to the dimension")
        bloom = read_filter(take, seed, count, has_choice=True)
        known = known_indices(bloom.knows, dimension, positives)
        return [known[number] for number in choose(Choice(known, count, seed, bloom, dimension))]

    return decode_section


def choose_left(of: Choice) -> Iterable[int]:
    """Chooses the first known indices: `bloom_naive`, `bloom_left`."""
    return range(of.count)


def choose_right(of: Choice) -> Iterable[int]:
    """Chooses the last known indices: `bloom_right`."""
    return range(len(of.known) - of.count, len(of.known))


def choose_middle(of: Choice) -> Iterable[int]:
    """Chooses the known indices in the middle: `bloom_middle`."""
    first = (len(of.known) - of.count) // 2
    return range(first, first + of.count)


def choose_p1(of: Choice) -> Iterable[int]:
    """Draws known indices: `bloom_p1` (bloom_codecs.md, "bloom_p1")."""
    draws = Sequence(of.seed, 0x7031)
    numbers: list[int] = []
    for number in range(len(of.known)):
        if draws.next_below(len(of.known) - number) < of.count - len(numbers):
            numbers.append(number)
    return numbers


def choose_p2(of: Choice) -> Iterable[int]:
    """Draws known indices from conflict sets: `bloom_p2` (bloom_codecs.md, "bloom_p2")."""
    k = len(of.filter.offsets)
    require(len(of.known) * k <= of.count * k + 2 * of.dimension + 65_536, "bloom_p2: too many indices are known")
    members_of_bit: dict[int, list[int]] = {}
    for number, index in enumerate(of.known):
        for bit in set(of.filter.probes(index)):
            members_of_bit.setdefault(bit, []).append(number)
    sets = [members for _, members in sorted(members_of_bit.items(), key=lambda item: (len(item[1]), item[0]))]
    draws = Sequence(of.seed, 0x7032)
    taken: set[int] = set()
    while len(taken) < of.count:
        require(len(sets) > 0, "bloom_p2: the conflict sets run out before count indices are taken")
        for members in sets:
            while members and len(taken) < of.count:
                place = draws.next_below(len(members))
                number, members[place] = members[place], members[-1]
                members.pop()
                if number not in taken:
                    taken.add(number)
                    break
        sets = [members for members in sets if members]
    return sorted(taken)


def bloom_blocked(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `bloom_blocked` (bloom_codecs.md, "bloom_blocked")."""
    check_probed_dimension(dimension, limits)
    salts = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
    take = Fields(section)
    seed, blocks = take.number(8), take.number(4)
    require(1 <= blocks <= 268_435_455, "bloom_blocked: the number of blocks is not from 1 to 268,435,455")
    words = array("I", take.bytes(32 * blocks))
    take.end()
    if sys.byteorder == "big":
        words.byteswap()
    block_offset, bit_offset = hash_offset(seed, 0), hash_offset(seed, 1)

    def knows(index: int) -> bool:
        first_word = 8 * (mix(index + block_offset & 0xFFFFFFFF) * blocks >> 32)
        h = mix(index + bit_offset & 0xFFFFFFFF)
        return all(words[first_word + w] >> ((h * salt & 0xFFFFFFFF) >> 27) & 1 for w, salt in enumerate(salts))

    return known_indices(knows, dimension, count)

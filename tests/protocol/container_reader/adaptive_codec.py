"""Decodes index codec `adaptive` (adaptive_codec.md)."""

from functools import lru_cache

from .bits import Bits
from .errors import Limits, require
from .index_codecs import FromGaps, no_indices

LEVELS = (0, 11, 22, 33, 44, 54, 63, 73, 82, 92, 100, 109, 118, 126, 134, 142,
          150, 157, 165, 172, 179, 186, 193, 200, 207, 213, 220, 226, 232, 238, 244, 250)
TAILS = (65536, 60097, 55109, 50535, 46341, 42495, 38968, 35734)
# offset, below, above of each shape
SHAPES = ((0, 4, 4), (0, 4, 6), (0, 3, 3), (8, 4, 8), (-8, 4, 6), (0, 3, 4), (0, 6, 6), (0, 6, 8))


def level(v: int) -> int:
    """Returns the level of v (adaptive_codec.md, "Decoding a gap")."""
    e = v.bit_length() - 1
    return 256 * e + LEVELS[(32 * v >> e) - 32]


def bin_low(b: int) -> int:
    """Returns the smallest value of a bin (adaptive_codec.md, "Bins")."""
    return 1 if b == 0 else (2 + (b + 1) % 2) << (b + 1) // 2 - 1


def bin_begin(b: int) -> int:
    """Returns begin(b), in sixteenths of an octave (adaptive_codec.md, "Bins")."""
    return (0, 9, 21, 29, 39, 47, 56, 63, 73)[b] if b <= 8 else 16 * ((b + 1) // 2) + 9 * ((b + 1) % 2)


def cumulative(b: int, shape: int, context: int) -> int:
    """Returns F(b) (adaptive_codec.md, "Weights")."""

    def tail(x: int) -> int:
        p = (TAILS[x % 8] << 14) >> x // 8
        return 65536 * p // ((1 << 30) + p) if x < 320 else 0

    if b == 0 or b == 64:
        return 65536 * (b // 64)
    offset, below, above = SHAPES[shape]
    x = bin_begin(b) - 8 * context - offset
    return tail(-x * below >> 3) if x < 0 else 65536 - tail(x * above >> 3)


def alphabet(shape: int, context: int) -> list[tuple[int, int, int]]:
    """Returns (gap_low, raw_bits, frequency) of each symbol (adaptive_codec.md, "Alphabet")."""
    weights = [cumulative(b + 1, shape, context) - cumulative(b, shape, context) for b in range(64)]
    first = last = max(range(63), key=lambda b: (weights[b], -b))
    while first > 0 and weights[first - 1] >= 20:
        first -= 1
    while last < 62 and weights[last + 1] >= 20:
        last += 1
    near = min(last + 6, 62)

    def bits_of_gaps(b: int) -> int:
        return (bin_low(b + 1) - 2).bit_length()

    symbols = [(0, bits_of_gaps(first - 1), sum(weights[:first]))] if first > 0 else []
    symbols += [(bin_low(b) - 1, max(0, (b + 1) // 2 - 1), weights[b]) for b in range(first, last + 1)]
    symbols += [(0, bits_of_gaps(near), sum(weights[last + 1:near + 1]))] if near > last else []
    symbols += [(0, 32, sum(weights[near + 1:]))]

    frequencies = [max(1, (1024 * weight + 32768) // 65536) for _, _, weight in symbols]
    largest = frequencies.index(max(frequencies))
    frequencies[largest] += 1024 - sum(frequencies)
    over = frequencies[largest] - 896
    if over > 0:
        frequencies[largest] = 896
        frequencies[largest + 1 if largest + 1 < len(frequencies) else largest - 1] += over
    return [(gap_low, raw_bits, f) for (gap_low, raw_bits, _), f in zip(symbols, frequencies)]


@lru_cache(maxsize=None)  # 8 shapes x 65 contexts
def states(shape: int, context: int) -> list[tuple[int, int, int, int]]:
    """Returns (gap_low, raw_bits, n, next) of each state (adaptive_codec.md, "States")."""
    symbols = alphabet(shape, context)
    symbol_of_state = [0] * 1024
    place = 0
    for symbol, (_, _, frequency) in enumerate(symbols):
        for _ in range(frequency):
            symbol_of_state[place] = symbol
            place = (place + 643) % 1024
    z_of_symbol = [frequency for _, _, frequency in symbols]
    table = []
    for symbol in symbol_of_state:
        z = z_of_symbol[symbol]
        z_of_symbol[symbol] += 1
        n = max(0, 11 - z.bit_length())
        table.append((symbols[symbol][0], symbols[symbol][1], n, (z << n) - 1024))
    return table


def adaptive(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `adaptive` (adaptive_codec.md)."""
    if count == 0:
        return no_indices(section)
    out = FromGaps(dimension)
    average = max(0, level(max(1, dimension // count)) - 256)
    averages = [[average, average] for _ in range(4)]  # fast and slow of each stream
    at = 0
    while len(out.indices) < count:
        require(at < len(section), "adaptive: the section ends before the last block")
        m = min(16_384, count - len(out.indices))
        gaps, at = adaptive_block(section, at, m, averages)
        for gap in gaps:
            out.add(gap)
    require(at == len(section), "adaptive: bytes are left over behind the last block")
    return out.indices


def adaptive_block(section: bytes, at: int, m: int, averages: list[list[int]]) -> tuple[list[int], int]:
    """Returns the m gaps of the block at byte `at`, and the block's end (adaptive_codec.md, "Streams of a block")."""
    shape, padding = section[at] & 31, section[at] >> 5
    require(shape <= 7, "adaptive: a block's shape is over 7")
    bits = Bits(section, at + 1)
    require(bits.take(padding) == 0, "adaptive: a padding bit is 1")
    streams = 4 if m >= 256 else 1
    state = [bits.take(10) for _ in range(streams)]
    gaps: list[list[int]] = [[] for _ in range(streams)]
    for symbol in range(m):
        s = symbol % streams
        fast, slow = averages[s]
        gap_low, raw_bits, n, next_state = states(shape, fast + slow + 128 >> 8)[state[s]]
        state[s] = next_state + bits.take(n)
        gap = gap_low + bits.take(raw_bits)
        gaps[s].append(gap)
        reached = level(gap + 1)
        averages[s] = [fast + (reached - fast >> 2), slow + (reached - slow >> 5)]
    require(not any(state), "adaptive: a stream's last state is not 0")
    require(bits.filling_bits() == 0, "adaptive: a block does not end with a whole byte")
    return [gap for stream in gaps for gap in stream], bits.align()

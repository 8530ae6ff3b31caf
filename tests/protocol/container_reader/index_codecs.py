"""Decodes index sections (index_codecs.md), but for `adaptive` and Bloom filters."""

import struct
from collections.abc import Callable

from .bits import Bits, Fields, canonical_codes, huffman_lengths, width
from .errors import Limits, require


def ascending(indices: list[int], dimension: int) -> list[int]:
    """Returns the indices, which must increase strictly and be below the dimension."""
    require(all(a < b for a, b in zip(indices, indices[1:])), "indices do not increase strictly")
    require(not indices or indices[-1] < dimension, "an index is not below the dimension")
    return indices


class FromGaps:
    """Adds up gaps (index_codecs.md, "Gaps"). The indices come out strictly increasing and below the dimension."""

    def __init__(self, dimension: int):
        self._dimension = dimension
        self.indices: list[int] = []

    def add(self, gap: int) -> None:
        index = gap + (self.indices[-1] + 1 if self.indices else 0)
        require(index < self._dimension, "an index is not below the dimension")
        self.indices.append(index)


def raw_indices(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `raw` (index_codecs.md, "raw")."""
    require(len(section) == 4 * count, "raw: the section does not have 4 bytes for each index")
    return ascending(list(struct.unpack(f"<{count}I", section)), dimension)


def bitmap(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `bitmap` (index_codecs.md, "bitmap")."""
    require(len(section) == (dimension + 7) // 8, "bitmap: the section does not have a bit for each index")
    require(sum(map(int.bit_count, section)) == count, "bitmap: count is not the number of bits that are 1")
    return ascending(ones(section), dimension)  # a filling bit that is 1 is an index beyond the dimension


def ones(stream: bytes) -> list[int]:
    """Returns the positions of the bits that are 1."""
    return [8 * place + bit for place, byte in enumerate(stream) if byte for bit in range(8) if byte >> bit & 1]


def gap_blocks(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `gap` (index_codecs.md, "gap")."""
    out = FromGaps(dimension)
    at = 0
    while len(out.indices) < count:
        size = min(256, count - len(out.indices))
        require(at < len(section), "gap: the section ends before the last block")
        b = section[at]
        require(b <= 31, "gap: a block's parameter is over 31")
        low_bytes = (size * b + 7) // 8
        low_bits = section[at + 1:at + 1 + low_bytes]
        require(len(low_bits) == low_bytes, "gap: the section ends within the low bits of a block")
        lows = lows_of_full_block(low_bits, b) if size == 256 else lows_of_short_block(low_bits, b, size)
        unary_begin = at + 1 + low_bytes
        bits = Bits(section, unary_begin)
        for low in lows:
            out.add(low + (bits.unary() << b))
        at = bits.align()
        require(at - unary_begin <= 1024, "gap: the unary codes of a block have more than 8,192 bits")
    require(at == len(section), "gap: bytes are left over behind the last block")
    return out.indices


def lows_of_full_block(low_bits: bytes, b: int) -> list[int]:
    """Returns the low parts of 256 gaps from 8 interleaved lanes (index_codecs.md, "gap")."""
    words = struct.unpack(f"<{8 * b}I", low_bits)
    lanes = [sum(words[8 * w + lane] << 32 * w for w in range(b)) for lane in range(8)]
    return [lanes[j % 8] >> b * (j // 8) & ((1 << b) - 1) for j in range(256)]


def lows_of_short_block(low_bits: bytes, b: int, size: int) -> list[int]:
    """Returns the low parts of a block of less than 256 gaps (index_codecs.md, "gap")."""
    bits = Bits(low_bits)
    lows = [bits.take(b) for _ in range(size)]
    bits.end()
    return lows


def coded_gaps(section: bytes, begin: int, dimension: int, count: int, next_gap: Callable[[Bits], int]) -> list[int]:
    """Decodes one stream of bits with a code for each gap; `next_gap` takes the code of one gap from the stream."""
    bits = Bits(section, begin)
    out = FromGaps(dimension)
    for _ in range(count):
        out.add(next_gap(bits))
    bits.end()
    return out.indices


def no_indices(section: bytes) -> list[int]:
    """Decodes no indices under a codec whose code of no indices has no bytes."""
    require(len(section) == 0, "the index section of no indices has bytes")
    return []


def elias_gamma(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `elias_gamma` (index_codecs.md, "elias_gamma, elias_delta, rice, golomb")."""
    return coded_gaps(section, 0, dimension, count, lambda bits: bits.gamma() - 1)


def elias_delta(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `elias_delta` (index_codecs.md, "elias_gamma, elias_delta, rice, golomb")."""
    return coded_gaps(section, 0, dimension, count, lambda bits: bits.delta() - 1)


def rice(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `rice` (index_codecs.md, "elias_gamma, elias_delta, rice, golomb")."""
    if count == 0:
        return no_indices(section)
    require(len(section) >= 1 and section[0] <= 31, "rice: the parameter is not from 0 to 31")
    b = section[0]
    return coded_gaps(section, 1, dimension, count, lambda bits: (bits.unary() << b) + bits.take(b))


def golomb(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `golomb` (index_codecs.md, "elias_gamma, elias_delta, rice, golomb")."""
    if count == 0:
        return no_indices(section)
    require(len(section) >= 4, "golomb: the section ends within the parameter")
    m = int.from_bytes(section[:4], "little")
    require(m >= 1, "golomb: the parameter is 0")
    c = width(m)
    s = (1 << c) - m

    def next_gap(bits: Bits) -> int:
        quotient = bits.unary()
        if m == 1:
            return quotient
        h = bits.take(c - 1)
        return quotient * m + (h if h < s else 2 * h + bits.take(1) - s)

    return coded_gaps(section, 4, dimension, count, next_gap)


def run_length(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `run_length` (index_codecs.md, "run_length")."""
    if count == 0:
        return no_indices(section)
    bits = Bits(section)
    indices: list[int] = []
    at = bits.gamma() - 1
    while True:
        run_of_ones = bits.gamma()
        require(run_of_ones <= count - len(indices), "run_length: a run has more indices than are still to come")
        require(at + run_of_ones <= dimension, "run_length: a run goes beyond the dimension")
        indices.extend(range(at, at + run_of_ones))
        if len(indices) == count:
            break
        at += run_of_ones + bits.gamma()
    bits.end()
    return indices


def huffman(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `huffman` (index_codecs.md, "huffman")."""
    weights = [0] * 256
    for r in (1, 256, 256 ** 2, 256 ** 3):
        for v in range(256):
            weights[v] += dimension // (256 * r) * r + min(r, max(0, dimension % (256 * r) - v * r))
    symbols = canonical_codes(huffman_lengths(weights))
    bits = Bits(section)
    indices = [sum(bits.huffman(symbols) << 8 * k for k in range(4)) for _ in range(count)]
    bits.end()
    return ascending(indices, dimension)


def roaring(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `roaring` (index_codecs.md, "roaring")."""
    take = Fields(section)
    cookie = take.number(4)
    if cookie == 12346:
        chunks = take.number(4)
        require(chunks <= 65_536, "roaring: there are more than 65,536 chunks")
        has_runs = [False] * chunks
    else:
        require(cookie & 0xFFFF == 12347, "roaring: the cookie is neither 12346 nor 12347")
        chunks = (cookie >> 16) + 1
        flags = Bits(take.bytes((chunks + 7) // 8))
        has_runs = [flags.take(1) == 1 for _ in range(chunks)]
        flags.end()
    descriptions = [(take.number(2), take.number(2) + 1) for _ in range(chunks)]
    keys = [key for key, _ in descriptions]
    require(all(a < b for a, b in zip(keys, keys[1:])), "roaring: keys do not increase strictly")
    require(sum(size for _, size in descriptions) == count, "roaring: the chunks do not have count indices in all")
    if cookie == 12346 or chunks >= 4:
        take.bytes(4 * chunks)  # offsets
    indices: list[int] = []
    for (key, size), runs in zip(descriptions, has_runs):
        lower_halves = roaring_chunk(take, size, runs)
        require(len(lower_halves) == size, "roaring: a chunk has another number of indices than its description says")
        indices.extend(key * 65_536 + lower for lower in lower_halves)
    take.end()
    return ascending(indices, dimension)


def roaring_chunk(take: Fields, size: int, has_runs: bool) -> list[int]:
    """Returns the lower halves of a chunk's indices (index_codecs.md, "roaring")."""
    if has_runs:
        lower_halves: list[int] = []
        for _ in range(take.number(2)):
            first, length = take.number(2), take.number(2) + 1
            require(not lower_halves or first > lower_halves[-1], "roaring: runs overlap or do not increase")
            require(first + length <= 65_536, "roaring: a run goes beyond its chunk")
            lower_halves.extend(range(first, first + length))
        return lower_halves
    if size <= 4096:
        return ascending(list(struct.unpack(f"<{size}H", take.bytes(2 * size))), 65_536)
    return ones(take.bytes(8192))


def byte_numbers(take: Fields, m: int) -> list[int]:
    """Returns the m numbers of one block of Stream VByte (index_codecs.md, "streamvbyte")."""
    lengths = Bits(take.bytes((m + 3) // 4))
    numbers_bytes = [lengths.take(2) + 1 for _ in range(m)]
    lengths.end()
    return [take.number(n) for n in numbers_bytes]


def streamvbyte(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `streamvbyte` (index_codecs.md, "streamvbyte")."""
    take = Fields(section)
    out = FromGaps(dimension)
    while len(out.indices) < count:
        for gap in byte_numbers(take, min(16_384, count - len(out.indices))):
            out.add(gap)
    take.end()
    return out.indices


def delta_binary(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `delta_binary` (index_codecs.md, "delta_binary")."""
    take = Fields(section)
    out = FromGaps(dimension)
    for place, delta in enumerate(byte_numbers(take, count)):
        require(place == 0 or delta >= 1, "delta_binary: a delta behind the first is 0")
        out.add(delta - 1 if place > 0 else delta)
    take.end()
    return out.indices


def delta_huffman(section: bytes, dimension: int, count: int, limits: Limits) -> list[int]:
    """Decodes `delta_huffman` (index_codecs.md, "delta_huffman")."""
    if count == 0:
        return no_indices(section)
    take = Fields(section)
    lengths_count = take.number(1)
    require(1 <= lengths_count <= 33, "delta_huffman: the number of code lengths is not from 1 to 33")
    lengths_bytes = (6 * lengths_count + 7) // 8
    lengths_bits = Bits(take.bytes(lengths_bytes))
    lengths = [lengths_bits.take(6) for _ in range(lengths_count)]
    lengths_bits.end()
    require(lengths[-1] != 0, "delta_huffman: the last code length is 0")
    symbols = canonical_codes(lengths)

    def next_gap(bits: Bits) -> int:
        n = bits.huffman(symbols)
        return (1 << n) + bits.take(n) - 1

    return coded_gaps(section, 1 + lengths_bytes, dimension, count, next_gap)

#!/usr/bin/env python3
"""Reads Millrace containers, with nothing but Python's standard library.

The reader was written from the pages in protocol/wire/ alone, as a proof that they suffice. Comments cite a page and a
section of it. The reader is for tests and foreign clients that must agree on every byte; it is not fast.

    stream = decode(container_bytes, dimension=16)
    stream.indices, stream.values

A container holds all that its reader needs: the codecs, their parameters, and the seed of a code that draws random
numbers. Step, part and worker change nothing. The caller may state the dimension that it expects, and limits.

The reader knows all index codecs but 23 (history.md), and the value codecs of the table VALUE_CODECS. It refuses other
codecs, and containers over its limits, with `Unsupported`. It refuses everything else that is wrong with `Malformed`.
"""

import argparse
import heapq
import math
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple


class Refused(Exception):
    """Says why a container is refused. `code` is a name of errors_and_limits.md, "Error codes"."""

    code = "invalid_argument"


class Malformed(Refused):
    """Says that the bytes are not what they claim to be."""

    code = "malformed"


class NonFinite(Malformed):
    """Says that a decoded value is NaN or infinite."""

    code = "non_finite"


class Unsupported(Refused):
    """Says that the bytes may be well formed, and that this reader does not read them."""

    code = "unsupported"


class LimitExceeded(Unsupported):
    """Says that the container is over a limit of this reader."""

    code = "limit_exceeded"


class Limits(NamedTuple):
    """Bounds memory and time. The counts keep a hostile container from claiming work that its bytes do not pay for."""

    container_bytes: int = 1 << 26
    count: int = 1 << 24
    probed_dimension: int = 1 << 24  # a Bloom filter is asked for each index of the dimension


class Stream(NamedTuple):
    """Holds a decoded stream; a dense one has the indices 0 to dimension - 1. `values` keeps every bit of the f32s."""

    dimension: int
    dense: bool
    indices: list[int] | range
    values: array


class Header(NamedTuple):
    """Holds the fields of container.md, "Header", that follow the magic."""

    version: int
    value_type: int
    flags: int
    index_codec: int
    value_codec: int
    reserved: bytes
    dimension: int
    count: int
    index_bytes: int
    value_bytes: int
    coupling_bytes: int
    checksum: int


def require(condition: bool, sentence: str) -> None:
    """Raises Malformed with the sentence unless the condition holds."""
    if not condition:
        raise Malformed(sentence)


# ---------------------------------------------------------------------------------------------------- container.md


def decode(
    container: bytes, dimension: int | None = None, limits: Limits = Limits(), accept_non_finite: bool = False
) -> Stream:
    """Returns the stream of a container (container.md, "Reading"; the numbers are the steps there).

    dimension          the one that the caller expects (a part's, for a message); None accepts any.
    accept_non_finite  leaves step 13 out: the job accepts NaN and infinity.
    """
    container = bytes(container)
    require(len(container) >= 64 and container[:4] == b"MRC1", "step 1: there are no 64 bytes that begin with MRC1")
    header = Header(*struct.unpack_from("<5B7s6Q", container, 4))
    if header.version != 1 or header.value_type != 1:
        raise Unsupported(f"step 2: version {header.version}, value type {header.value_type}; this reader knows 1, 1")
    require(header.flags <= 1 and not any(header.reserved), "step 3: a reserved flag or byte is not 0")
    sections_bytes = header.index_bytes + header.value_bytes + header.coupling_bytes
    require(64 + sections_bytes == len(container), "step 4: header and sections are not the whole container")
    dense = header.flags == 1
    require(1 <= header.dimension <= 1 << 32, "step 5: the dimension is not from 1 to 2^32")
    require(header.count == header.dimension if dense else header.count <= header.dimension,
            "step 5: the count does not fit the dimension")
    require((header.index_codec == 0) == dense, "step 5: a dense stream has an index codec, or a sparse one none")
    require(not dense or header.index_bytes == 0, "step 5: a dense stream has an index section")
    if len(container) > limits.container_bytes or header.count > limits.count:
        raise LimitExceeded(f"step 6: {len(container)} bytes, {header.count} entries; the limits are {limits}")
    require(dimension in (None, header.dimension), f"step 6: the dimension is {header.dimension}, not {dimension}")
    checksum = xxh3_64(container[64:], xxh3_64(container[:56]))
    require(header.checksum == checksum, "step 7: the checksum does not fit")
    if header.coupling_bytes != 0:
        raise Unsupported("step 8: the container has a coupling section")
    if header.index_codec not in INDEX_CODECS and not dense:
        raise Unsupported(f"step 9: this reader does not know index codec {header.index_codec}")
    if header.value_codec not in VALUE_CODECS:
        raise Unsupported(f"step 9: this reader does not know value codec {header.value_codec}")

    # Steps 10 and 12 come before step 11: no value codec of this reader needs indices, and all three refuse alike.
    index_end = 64 + header.index_bytes
    values = VALUE_CODECS[header.value_codec][1](container[index_end:], header.count)
    if dense:
        indices = range(header.count)
    else:
        indices = INDEX_CODECS[header.index_codec][1](container[64:index_end], header.dimension, header.count, limits)
    require(len(indices) == len(values) == header.count, "steps 11, 12: a section does not have count entries")
    if not accept_non_finite and not all(map(math.isfinite, values)):
        raise NonFinite("step 13: a value is NaN or infinite")
    return Stream(header.dimension, dense, indices, values)


# --------------------------------------------------------------------------------------------------------- bits.md


class Bits:
    """Reads a stream of bits that begins at byte `begin` of `data` (bits.md, "Streams of bits")."""

    def __init__(self, data: bytes, begin: int = 0):
        self._data = data
        self._next_byte = begin
        self._held = 0  # bits that are loaded and not taken yet; the next one is the lowest
        self._held_bits = 0

    def _load(self) -> None:
        """Loads up to 8 more bytes."""
        chunk = self._data[self._next_byte:self._next_byte + 8]
        require(len(chunk) > 0, "a stream of bits ends too early")
        self._held |= int.from_bytes(chunk, "little") << self._held_bits
        self._held_bits += 8 * len(chunk)
        self._next_byte += len(chunk)

    def take(self, n: int) -> int:
        """Returns the number in the next n bits, the lowest bit first."""
        while self._held_bits < n:
            self._load()
        value = self._held & ((1 << n) - 1)
        self._held >>= n
        self._held_bits -= n
        return value

    def unary(self) -> int:
        """Returns how many bits 0 precede the next bit 1, and takes them all (bits.md, "Unary code")."""
        zeros = 0
        while self._held == 0:
            zeros += self._held_bits
            self._held_bits = 0
            self._load()
        zeros_held = (self._held & -self._held).bit_length() - 1
        self.take(zeros_held + 1)
        return zeros + zeros_held

    def gamma(self) -> int:
        """Returns the next number in Elias gamma code (bits.md, "Elias gamma code")."""
        n = self.unary()
        require(n <= 32, "a gamma code has more than 32 zeros in front")
        return (1 << n) + self.take(n)

    def delta(self) -> int:
        """Returns the next v in Elias delta code (index_codecs.md, "elias_gamma, elias_delta, rice, golomb")."""
        n = self.gamma() - 1
        require(n <= 32, "an Elias delta code states more than 33 bits")
        return (1 << n) + self.take(n)

    def huffman(self, symbols: dict[tuple[int, int], int]) -> int:
        """Returns the next symbol of a code of `canonical_codes`."""
        code = 0
        for length in range(1, 33):
            code = code << 1 | self.take(1)
            if (length, code) in symbols:
                return symbols[length, code]
        raise Malformed("bits are no symbol's Huffman code")

    def filling_bits(self) -> int:
        """Returns how many bits are left of the byte that the last bit was taken from."""
        return self._held_bits % 8

    def align(self) -> int:
        """Takes the bits that fill the last byte, which must be 0. Returns the offset of the byte behind them."""
        require(self.take(self.filling_bits()) == 0, "a bit that fills a stream's last byte is 1")
        return self._next_byte - self._held_bits // 8

    def end(self) -> None:
        """Requires that the stream ends here, and `data` with it."""
        require(self.align() == len(self._data), "bytes are left over behind a stream of bits")


def width(n: int) -> int:
    """Returns the number of bits that the numbers 0 to n - 1 take (bits.md, "Notation")."""
    return (n - 1).bit_length() if n > 1 else 0


def huffman_lengths(weights: list[int]) -> list[int]:
    """Returns the length of each symbol's code, 0 where its weight is 0 (bits.md, "From weights to lengths")."""
    trees = [(weight, symbol, (symbol,)) for symbol, weight in enumerate(weights) if weight > 0]
    heapq.heapify(trees)  # the number, the second item, decides between equally light trees
    lengths = [0] * len(weights)
    if len(trees) == 1:
        lengths[trees[0][1]] = 1
    for number in range(256, 256 + len(trees) - 1):
        (weight_a, _, symbols_a), (weight_b, _, symbols_b) = heapq.heappop(trees), heapq.heappop(trees)
        for symbol in symbols_a + symbols_b:
            lengths[symbol] += 1
        heapq.heappush(trees, (weight_a + weight_b, number, symbols_a + symbols_b))
    return lengths


def canonical_codes(lengths: list[int]) -> dict[tuple[int, int], int]:
    """Returns the symbol of each (length, code) (bits.md, "From lengths to codes", "Lengths that a reader gets")."""
    occurring = sorted((length, symbol) for symbol, length in enumerate(lengths) if length > 0)
    require(all(length <= 32 for length, _ in occurring), "a Huffman code is longer than 32 bits")
    complete = sum(1 << (32 - length) for length, _ in occurring) == 1 << 32
    require(complete or [length for length, _ in occurring] == [1], "lengths of codes make no Huffman code")
    symbols = {}
    code, length_before = -1, 0
    for length, symbol in occurring:
        code = (code + 1) << (length - length_before)
        length_before = length
        symbols[length, code] = symbol
    return symbols


# ------------------------------------------------------------------------------------------------- index_codecs.md


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


def roaring_chunk(take: "Fields", size: int, has_runs: bool) -> list[int]:
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


class Fields:
    """Reads whole bytes from the front of a section."""

    def __init__(self, section: bytes):
        self._section = section
        self._at = 0

    def bytes(self, n: int) -> bytes:
        require(n <= len(self._section) - self._at, "a section ends too early")
        self._at += n
        return self._section[self._at - n:self._at]

    def number(self, n: int) -> int:
        """Returns the unsigned integer in the next n bytes."""
        return int.from_bytes(self.bytes(n), "little")

    def rest(self) -> bytes:
        """Returns the bytes that are left."""
        return self.bytes(len(self._section) - self._at)

    def end(self) -> None:
        require(self._at == len(self._section), "bytes are left over at the end of a section")


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


# ----------------------------------------------------------------------------------------------- adaptive_codec.md

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


# ------------------------------------------------------------------------------------------------------- random.md


def philox(key: int, counter: int, stream: int) -> tuple[int, int, int, int]:
    """Returns words(key, counter, stream) (random.md, "Philox4x32-10")."""
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    c0, c1, c2, c3 = counter & 0xFFFFFFFF, counter >> 32, stream & 0xFFFFFFFF, stream >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = q >> 32 ^ c1 ^ k0, q & 0xFFFFFFFF, p >> 32 ^ c3 ^ k1, p & 0xFFFFFFFF
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return c0, c1, c2, c3


class Sequence:
    """Draws numbers from the generator (random.md, "Sequences")."""

    def __init__(self, key: int, stream: int):
        self._key, self._stream = key, stream
        self._counter = 0
        self._words: list[int] = []

    def next_below(self, n: int) -> int:
        if not self._words:
            self._words = list(philox(self._key, self._counter, self._stream))
            self._counter += 1
        high, low = self._words.pop(0), self._words.pop(0)
        return (high << 32 | low) * n >> 64


def mix(h: int) -> int:
    """Returns the hash of a u32 (random.md, "Mix and probes")."""
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def hash_offset(seed: int, p: int) -> int:
    """Returns offset(p) of a code's seed (random.md, "Mix and probes")."""
    return philox(seed, p // 4, 0)[p % 4]


# ------------------------------------------------------------------------------------------------- bloom_codecs.md


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
    require(least <= n <= most, "bloom: no sender makes a filter of this size for so many indices")
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


# ------------------------------------------------------------------------------------------------- value_codecs.md


def floats(data: bytes) -> array:
    """Returns f32s bit for bit. A multiple of 4 bytes is the caller's part."""
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def f32(x: float) -> float:
    """Returns x rounded to the nearest f32."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def magnitude(bits: int) -> float:
    """Returns the f32 of these bits, which must be finite and without a sign (value_codecs.md, a *magnitude*)."""
    require(bits < 0x7F800000, "a magnitude is negative, infinite or NaN")
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def signed(value: float, negative: int | bool) -> float:
    """Returns the value with its sign turned where `negative` is 1."""
    return -value if negative else value


def bucket_sizes(count: int, bucket_size: int) -> Iterator[int]:
    """Returns the number of values of each bucket (value_codecs.md, "Buckets")."""
    require(1 <= bucket_size <= 1 << 24, "the bucket size is not from 1 to 2^24")
    return (min(bucket_size, count - begin) for begin in range(0, count, bucket_size))


def raw_values(section: bytes, count: int) -> array:
    """Decodes `raw` (value_codecs.md, "raw")."""
    require(len(section) == 4 * count, "raw: the section does not have 4 bytes for each value")
    return floats(section)


def qsgd_parameters(take: Fields) -> tuple[int, int]:
    """Returns bits and bucket size (value_codecs.md, "qsgd")."""
    bits, scale, reserved, bucket_size = take.number(1), take.number(1), take.number(2), take.number(4)
    require(2 <= bits <= 8, "qsgd: a value has not 2 to 8 bits")
    require(scale in (1, 2), "qsgd: the kind of scale is neither 1 nor 2")
    require(reserved == 0, "qsgd: a reserved byte is not 0")
    return bits, bucket_size


def qsgd_values_of_levels(scale_bits: int, s: int) -> list[float]:
    """Returns the decoded magnitude of each level of a bucket (value_codecs.md, "qsgd")."""
    scale = magnitude(scale_bits)
    unit = f32(scale / s)
    require(scale == 0 or unit >= 2.0 ** -126, "qsgd: a scale is too small")
    return [f32(l * unit) for l in range(s)] + [scale]


def qsgd_value(values_of_levels: list[float], l: int, negative: int) -> float:
    """Returns the value of a level; a value 0 is +0 whatever its sign (value_codecs.md, "qsgd")."""
    return signed(values_of_levels[l], negative) if values_of_levels[l] != 0 else 0.0


def qsgd(section: bytes, count: int) -> array:
    """Decodes `qsgd` (value_codecs.md, "qsgd")."""
    take = Fields(section)
    bits, bucket_size = qsgd_parameters(take)
    s = (1 << bits - 1) - 1
    values = array("f")
    for size in bucket_sizes(count, bucket_size):
        values_of_levels = qsgd_values_of_levels(take.number(4), s)
        codes = Bits(take.bytes((bits * size + 7) // 8))
        for _ in range(size):
            code = codes.take(bits)
            values.append(qsgd_value(values_of_levels, code & s, code > s))
        codes.end()
    take.end()
    return values


def qsgd_elias(section: bytes, count: int) -> array:
    """Decodes `qsgd_elias` (value_codecs.md, "qsgd_elias")."""
    take = Fields(section)
    bits, bucket_size = qsgd_parameters(take)
    s = (1 << bits - 1) - 1
    stream = Bits(take.rest())
    values = array("f")
    for size in bucket_sizes(count, bucket_size):
        values_of_levels = qsgd_values_of_levels(stream.take(32), s)
        skips_zeros = stream.take(1) == 1
        left = size
        while left > 0:
            if skips_zeros:
                zeros = stream.gamma() - 1
                require(zeros <= left, "qsgd_elias: zeros go beyond their bucket")
                values.extend([0.0] * zeros)
                left -= zeros
                if left == 0:
                    break
            l = stream.gamma() - (0 if skips_zeros else 1)
            require(l <= s, "qsgd_elias: a level is over the largest one")
            values.append(qsgd_value(values_of_levels, l, stream.take(1) if l > 0 else 0))
            left -= 1
    stream.end()
    return values


def f16(section: bytes, count: int) -> array:
    """Decodes `f16` (value_codecs.md, "f16")."""
    require(len(section) == 4 + 2 * count, "f16: the section does not have 4 bytes and 2 for each value")
    exponent, reserved = struct.unpack_from("<hH", section)
    require(-101 <= exponent <= 112, "f16: the exponent is not from -101 to 112")
    require(reserved == 0, "f16: a reserved byte is not 0")
    halves = struct.unpack_from(f"<{count}e", section, 4)
    require(all(map(math.isfinite, halves)), "f16: a half is NaN or infinite")
    return array("f", [half * 2.0 ** exponent for half in halves])


def bf16(section: bytes, count: int) -> array:
    """Decodes `bf16` (value_codecs.md, "bf16")."""
    require(len(section) == 2 * count, "bf16: the section does not have 2 bytes for each value")
    values = floats(b"".join(b"\0\0" + section[at:at + 2] for at in range(0, len(section), 2)))
    require(all(map(math.isfinite, values)), "bf16: a value is NaN or infinite")
    return values


def sign_mean(section: bytes, count: int) -> array:
    """Decodes `sign_mean` (value_codecs.md, "sign_mean")."""
    take = Fields(section)
    signs, reserved, mean = take.number(1), take.number(3), magnitude(take.number(4))
    require(signs <= 2 and reserved == 0, "sign_mean: signs is over 2, or a reserved byte is not 0")
    if signs < 2:
        take.end()
        return array("f", [signed(mean, signs)]) * count
    bits = Bits(take.rest())
    values = array("f", [signed(mean, bits.take(1)) for _ in range(count)])
    bits.end()
    return values


def terngrad(section: bytes, count: int) -> array:
    """Decodes `terngrad` (value_codecs.md, "terngrad")."""
    take = Fields(section)
    values = array("f")
    for size in bucket_sizes(count, take.number(4)):
        scale = magnitude(take.number(4))
        require(scale == 0 or scale >= 2.0 ** -126, "terngrad: a scale is denormal")
        digits: list[int] = []
        for byte in take.bytes((size + 4) // 5):
            require(byte <= 242, "terngrad: a byte of digits is over 242")
            digits += [byte // 3 ** i % 3 for i in range(5)]
        require(not any(digits[size:]), "terngrad: a digit that stands for no value is not 0")
        of_digit = (0.0, scale, -scale if scale != 0 else 0.0)
        values.extend([of_digit[digit] for digit in digits[:size]])
    take.end()
    return values


def onebit(section: bytes, count: int) -> array:
    """Decodes `onebit` (value_codecs.md, "onebit")."""
    take = Fields(section)
    values = array("f")
    for size in bucket_sizes(count, take.number(4)):
        means = magnitude(take.number(4)), -magnitude(take.number(4))
        bits = Bits(take.bytes((size + 7) // 8))
        values.extend([means[bits.take(1)] for _ in range(size)])
        bits.end()
    take.end()
    return values


# --------------------------------------------------------------------------------------------------------- xxh3.md

U64 = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
Q1, Q2, Q3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")


def r4(b: bytes, i: int) -> int:
    return int.from_bytes(b[i:i + 4], "little")


def r8(b: bytes, i: int) -> int:
    return int.from_bytes(b[i:i + 8], "little")


def fold(x: int, y: int) -> int:
    product = (x & U64) * (y & U64)
    return (product ^ product >> 64) & U64


def avalanche(h: int) -> int:
    h &= U64
    h = (h ^ h >> 37) * 0x165667919E3779F9 & U64
    return h ^ h >> 32


def avalanche64(h: int) -> int:
    h &= U64
    h = (h ^ h >> 33) * P2 & U64
    h = (h ^ h >> 29) * P3 & U64
    return h ^ h >> 32


def rotl(x: int, k: int) -> int:
    return (x << k | x >> 64 - k) & U64


def swapped(x: int, size: int) -> int:
    """Returns swap4 or swap8 of x."""
    return int.from_bytes(x.to_bytes(size, "little"), "big")


def xxh3_64(b: bytes, s: int = 0) -> int:
    """Returns XXH3-64(b; s) (xxh3.md)."""
    n, S = len(b), SECRET

    def mixed(i: int, k: int) -> int:
        return fold(r8(b, i) ^ (r8(S, k) + s & U64), r8(b, i + 8) ^ (r8(S, k + 8) - s & U64))

    if n == 0:
        return avalanche64(s ^ r8(S, 56) ^ r8(S, 64))
    if n <= 3:
        c = b[n // 2] << 24 | b[0] << 16 | n << 8 | b[n - 1]
        return avalanche64(c ^ ((r4(S, 0) ^ r4(S, 4)) + s & U64))
    if n <= 8:
        t = s ^ swapped(s & 0xFFFFFFFF, 4) << 32
        h = (r4(b, n - 4) + (r4(b, 0) << 32)) ^ ((r8(S, 8) ^ r8(S, 16)) - t & U64)
        h = (h ^ rotl(h, 49) ^ rotl(h, 24)) * 0x9FB21C651E98DF25 & U64
        h = (h ^ (h >> 35) + n & U64) * 0x9FB21C651E98DF25 & U64
        return h ^ h >> 28
    if n <= 16:
        lo = r8(b, 0) ^ ((r8(S, 24) ^ r8(S, 32)) + s & U64)
        hi = r8(b, n - 8) ^ ((r8(S, 40) ^ r8(S, 48)) - s & U64)
        return avalanche(n + swapped(lo, 8) + hi + fold(lo, hi))
    if n <= 128:
        pairs = range((n - 1) // 32 + 1)
        return avalanche(n * P1 + sum(mixed(16 * k, 32 * k) + mixed(n - 16 * (k + 1), 32 * k + 16) for k in pairs))
    if n <= 240:
        a = avalanche(n * P1 + sum(mixed(16 * k, 16 * k) for k in range(8)))
        return avalanche(a + sum(mixed(16 * k, 16 * (k - 8) + 3) for k in range(8, n // 16)) + mixed(n - 16, 119))
    return xxh3_64_long(b, s)


def xxh3_64_long(b: bytes, s: int) -> int:
    """Returns XXH3-64(b; s) of more than 240 bytes (xxh3.md, "n over 240")."""
    n = len(b)
    words = struct.unpack("<24Q", SECRET)
    T = struct.pack("<24Q", *(word + (s if k % 2 == 0 else -s) & U64 for k, word in enumerate(words)))
    A = [Q3, P1, P2, P3, P4, Q2, P5, Q1]

    def accumulate(i: int, k: int) -> None:
        for j, (d, t) in enumerate(zip(struct.unpack_from("<8Q", b, i), struct.unpack_from("<8Q", T, k))):
            x = d ^ t
            A[j ^ 1] = A[j ^ 1] + d & U64
            A[j] = A[j] + (x & 0xFFFFFFFF) * (x >> 32) & U64

    for t in range((n - 1) // 64):
        accumulate(64 * t, 8 * (t % 16))
        if t % 16 == 15:
            for j in range(8):
                A[j] = (A[j] ^ A[j] >> 47 ^ r8(T, 128 + 8 * j)) * Q1 & U64
    accumulate(n - 64, 121)
    folds = (fold(A[2 * j] ^ r8(T, 11 + 16 * j), A[2 * j + 1] ^ r8(T, 19 + 16 * j)) for j in range(4))
    return avalanche(n * P1 + sum(folds))


# ---------------------------------------------------------------------------------------------------------- tables

INDEX_CODECS = {  # index_codecs.md
    1: ("raw", raw_indices),
    2: ("bitmap", bitmap),
    3: ("gap", gap_blocks),
    4: ("bloom_p0", bloom_p0),
    5: ("elias_gamma", elias_gamma),
    6: ("elias_delta", elias_delta),
    7: ("rice", rice),
    8: ("golomb", golomb),
    9: ("adaptive", adaptive),
    10: ("run_length", run_length),
    11: ("huffman", huffman),
    12: ("roaring", roaring),
    13: ("streamvbyte", streamvbyte),
    14: ("bloom_naive", bloom_with_choice(choose_left)),
    15: ("bloom_p1", bloom_with_choice(choose_p1)),
    16: ("bloom_p2", bloom_with_choice(choose_p2)),
    17: ("bloom_left", bloom_with_choice(choose_left)),
    18: ("bloom_middle", bloom_with_choice(choose_middle)),
    19: ("bloom_right", bloom_with_choice(choose_right)),
    20: ("bloom_blocked", bloom_blocked),
    21: ("delta_binary", delta_binary),
    22: ("delta_huffman", delta_huffman),
}

VALUE_CODECS = {  # value_codecs.md
    1: ("raw", raw_values),
    2: ("qsgd", qsgd),
    3: ("f16", f16),
    4: ("bf16", bf16),
    5: ("sign_mean", sign_mean),
    6: ("terngrad", terngrad),
    7: ("onebit", onebit),
    8: ("qsgd_elias", qsgd_elias),
}


def main() -> int:
    """Prints the entries of a container, one a line."""
    arguments = argparse.ArgumentParser(description="Print the entries of a Millrace container, one a line.")
    arguments.add_argument("file", help="a file that holds one container: the payload of a Contribution or an Update")
    arguments.add_argument("--dimension", type=int, help="refuse a container of another dimension")
    options = arguments.parse_args()
    try:
        with open(options.file, "rb") as file:
            stream = decode(file.read(), options.dimension)
    except (OSError, Refused) as error:
        print(f"read_container: {options.file}: {error}", file=sys.stderr)
        return 1
    for index, value in zip(stream.indices, stream.values):
        print(index, value)
    return 0


if __name__ == "__main__":
    sys.exit(main())

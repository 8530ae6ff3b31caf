"""Reads streams of bits, Huffman codes and whole bytes (bits.md)."""

import heapq

from .errors import Malformed, require


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

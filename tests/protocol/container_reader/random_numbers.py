"""Makes the numbers that sender and receiver both draw (random.md)."""


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

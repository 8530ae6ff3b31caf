"""Computes XXH3-64 (xxh3.md)."""

import struct

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

"""Decodes value sections (value_codecs.md), but for sketches and fitted curves."""

import math
import struct
import sys
from array import array
from collections.abc import Iterator

from .bits import Bits, Fields
from .errors import require


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
    """Returns the value of a level; a value 0 is +0 for either sign (value_codecs.md, "qsgd")."""
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

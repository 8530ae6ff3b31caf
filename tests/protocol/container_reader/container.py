"""Reads containers (container.md). The tables name the decoder of each codec."""

import math
import struct
from array import array
from typing import NamedTuple

from . import adaptive_codec, bloom_codecs, index_codecs, value_codecs
from .errors import LimitExceeded, Limits, NonFinite, Unsupported, require
from .xxh3 import xxh3_64


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


INDEX_CODECS = {  # index_codecs.md
    1: ("raw", index_codecs.raw_indices),
    2: ("bitmap", index_codecs.bitmap),
    3: ("gap", index_codecs.gap_blocks),
    4: ("bloom_p0", bloom_codecs.bloom_p0),
    5: ("elias_gamma", index_codecs.elias_gamma),
    6: ("elias_delta", index_codecs.elias_delta),
    7: ("rice", index_codecs.rice),
    8: ("golomb", index_codecs.golomb),
    9: ("adaptive", adaptive_codec.adaptive),
    10: ("run_length", index_codecs.run_length),
    11: ("huffman", index_codecs.huffman),
    12: ("roaring", index_codecs.roaring),
    13: ("streamvbyte", index_codecs.streamvbyte),
    14: ("bloom_naive", bloom_codecs.bloom_with_choice(bloom_codecs.choose_left)),
    15: ("bloom_p1", bloom_codecs.bloom_with_choice(bloom_codecs.choose_p1)),
    16: ("bloom_p2", bloom_codecs.bloom_with_choice(bloom_codecs.choose_p2)),
    17: ("bloom_left", bloom_codecs.bloom_with_choice(bloom_codecs.choose_left)),
    18: ("bloom_middle", bloom_codecs.bloom_with_choice(bloom_codecs.choose_middle)),
    19: ("bloom_right", bloom_codecs.bloom_with_choice(bloom_codecs.choose_right)),
    20: ("bloom_blocked", bloom_codecs.bloom_blocked),
    21: ("delta_binary", index_codecs.delta_binary),
    22: ("delta_huffman", index_codecs.delta_huffman),
}

VALUE_CODECS = {  # value_codecs.md
    1: ("raw", value_codecs.raw_values),
    2: ("qsgd", value_codecs.qsgd),
    3: ("f16", value_codecs.f16),
    4: ("bf16", value_codecs.bf16),
    5: ("sign_mean", value_codecs.sign_mean),
    6: ("terngrad", value_codecs.terngrad),
    7: ("onebit", value_codecs.onebit),
    8: ("qsgd_elias", value_codecs.qsgd_elias),
}


def decode(
    container: bytes, dimension: int | None = None, limits: Limits = Limits(), accept_non_finite: bool = False
) -> Stream:
    """Returns the stream of a container (container.md, "Reading"; the numbers are the steps there).

    dimension          the one that the caller expects (a part's, for a message); None accepts any.
    accept_non_finite  leaves step 13 out: the caller accepts NaN and infinity.
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

#!/usr/bin/env python3
"""Tests the package container_reader against the test vectors, and against damaged containers.

    read_container_test.py [FOLDER]      FOLDER has index.json, value.json, container.json, history.json;
                                         protocol/vectors by default
"""

import json
import struct
import sys
import unittest
from pathlib import Path

from container_reader.adaptive_codec import alphabet
from container_reader.bits import Bits, canonical_codes, huffman_lengths
from container_reader.container import INDEX_CODECS, VALUE_CODECS, Stream, decode
from container_reader.errors import LimitExceeded, Limits, Malformed, NonFinite, Unsupported
from container_reader.random_numbers import Sequence, hash_offset, mix, philox
from container_reader.xxh3 import xxh3_64

VECTORS = Path(__file__).resolve().parent / "../../protocol/vectors"
# Damaged headers may claim more than the vectors have: these limits keep their cost low.
TEST_LIMITS = Limits(container_bytes=1 << 20, count=1 << 15, probed_dimension=1 << 13)
SIGN_MEAN = 5  # its code of any number of zeros is these 8 bytes
ZEROS = bytes(8)
RAW = 1


def vectors(file: str) -> dict:
    """Returns one file of vectors."""
    with open(VECTORS / file, encoding="utf-8") as opened:
        return json.load(opened)


def container_of(
    index_codec: int, value_codec: int, dimension: int, count: int, indices: bytes, values: bytes
) -> bytes:
    """Returns the container of two sections (protocol/wire/container.md). Index codec 0 makes a dense one."""
    header = b"MRC1" + struct.pack("<5B7x5Q", 1, 1, index_codec == 0, index_codec, value_codec, dimension, count,
                                   len(indices), len(values), 0)
    return checked(header + bytes(8) + indices + values)


def checked(container: bytes) -> bytes:
    """Returns the container with the checksum that its other bytes need."""
    return container[:56] + struct.pack("<Q", xxh3_64(container[64:], xxh3_64(container[:56]))) + container[64:]


def bits_of(values) -> list[str]:
    """Returns f32s as the vectors write their bits."""
    return [f"{bits:08x}" for bits in struct.unpack(f"={len(values)}I", values.tobytes())]


def indices_of(stream: dict) -> list[int]:
    """Returns the indices of a stream of the vectors."""
    return stream["indices"] if "indices" in stream else [i for begin, end in stream["runs"] for i in range(begin, end)]


def index_vectors():
    """Yields (vector, its stream, its index section in a container) of each index vector that has bytes."""
    file = vectors("index.json")
    streams = {stream["name"]: stream for stream in file["streams"]}
    for vector in file["vectors"]:
        if "bytes" in vector:
            stream = streams[vector["stream"]]
            section = bytes.fromhex(vector["bytes"])
            yield vector, stream, container_of(
                vector["id"], SIGN_MEAN, stream["dimension"], vector["count"], section, ZEROS)


def value_vectors():
    """Yields (vector, its stream, its value section in a container) of each value vector that has bytes."""
    file = vectors("value.json")
    streams = {stream["name"]: stream for stream in file["streams"]}
    for vector in file["vectors"]:
        if "bytes" in vector:
            stream = streams[vector["stream"]]
            count = len(stream["values"])
            indices = struct.pack(f"<{count}I", *range(count))
            yield vector, stream, container_of(RAW, vector["id"], 1000, count, indices, bytes.fromhex(vector["bytes"]))


def container_vectors():
    """Yields (vector, container) of each container vector that has bytes."""
    for vector in vectors("container.json")["vectors"]:
        if "bytes" in vector:
            yield vector, bytes.fromhex(vector["bytes"])


def supported_containers():
    """Yields (name, container) of every vector whose codecs the reader knows."""
    for vector, _, container in index_vectors():
        if vector["id"] in INDEX_CODECS:
            yield "index: " + vector["name"], container
    for vector, _, container in value_vectors():
        if vector["id"] in VALUE_CODECS:
            yield "value: " + vector["name"], container
    for vector, container in container_vectors():
        if vector["header"]["value_codec"] in VALUE_CODECS:
            yield "container: " + vector["name"], container


def spread(count: int, most: int) -> list[int]:
    """Returns the numbers 0 to count - 1, or `most` of them: the last, and others at distances that do not repeat."""
    if count <= most:
        return list(range(count))
    return sorted({count - 1, *(i * count // most + i * i % (count // most) for i in range(most - 1))})


class VectorTest(unittest.TestCase):
    """Decodes every vector bit for bit."""

    def test_index_vectors_decode_exactly(self):
        seen = set()
        for vector, stream, container in index_vectors():
            with self.subTest(vector["name"]):
                decoded = decode(container, stream["dimension"])
                wanted = vector.get("decoded", indices_of(stream))
                self.assertEqual(decoded.indices, wanted if isinstance(wanted, list) else indices_of(wanted))
                seen.add(vector["id"])
                self.assertEqual(INDEX_CODECS[vector["id"]][0], vector["codec"].split(":")[0])
        self.assertEqual(seen, set(INDEX_CODECS), "an index codec that the reader knows has no vector")

    def test_value_vectors_decode_exactly(self):
        seen = set()
        for vector, stream, container in value_vectors():
            if vector["id"] in VALUE_CODECS:
                with self.subTest(vector["name"]):
                    decoded = decode(container)
                    self.assertEqual(bits_of(decoded.values), vector.get("decoded_bits", stream["values_bits"]))
                    seen.add(vector["id"])
        self.assertEqual(seen, set(VALUE_CODECS), "a value codec that the reader knows has no vector")

    def test_container_vectors_decode_exactly(self):
        index_codecs, value_codecs = set(), set()
        for vector, container in container_vectors():
            header = vector["header"]
            if header["value_codec"] not in VALUE_CODECS:
                continue
            with self.subTest(vector["name"]):
                decoded = decode(container, vector["dimension"])
                wanted = vector["decoded"]
                self.assertEqual((decoded.dimension, decoded.dense), (vector["dimension"], wanted["dense"]))
                dense = list(range(vector["dimension"]))
                self.assertEqual(list(decoded.indices), dense if wanted["dense"] else indices_of(wanted))
                self.assertEqual(bits_of(decoded.values), wanted["values_bits"])
                index_codecs.add(header["index_codec"])
                value_codecs.add(header["value_codec"])
        self.assertEqual(index_codecs, set(INDEX_CODECS) | {0}, "an index codec has no container, or dense has none")
        self.assertEqual(value_codecs, set(VALUE_CODECS), "a value codec that the reader knows has no container")

    def test_other_value_codecs_are_unsupported(self):
        for vector, _, container in value_vectors():
            if vector["id"] not in VALUE_CODECS:
                with self.subTest(vector["name"]), self.assertRaises(Unsupported):
                    decode(container)

    def test_history_containers_are_unsupported(self):
        for vector in vectors("history.json")["vectors"]:
            with self.subTest(vector["name"]), self.assertRaises(Unsupported):
                decode(bytes.fromhex(vector["bytes"]))


class DamageTest(unittest.TestCase):
    """Damages the containers of the vectors, and requires a refusal or, under a fitting checksum, a stream."""

    def outcome(self, container: bytes):
        """Returns the stream, or None for a refusal. Any other exception fails the test."""
        try:
            return decode(container, limits=TEST_LIMITS)
        except (Malformed, Unsupported):
            return None

    def test_all_prefixes_of_containers_are_malformed(self):
        for vector, container in container_vectors():
            with self.subTest(vector["name"]):
                for length in range(len(container)):
                    with self.assertRaises(Malformed):
                        decode(container[:length])

    def test_prefixes_of_sections_are_malformed(self):
        for name, container in supported_containers():
            index_bytes, value_bytes = struct.unpack_from("<2Q", container, 32)
            index_end = 64 + index_bytes
            with self.subTest(name):
                for length in spread(index_bytes, 8):
                    fields = struct.pack("<2Q", length, value_bytes)
                    damaged = container[:32] + fields + container[48:64 + length] + container[index_end:]
                    with self.assertRaises(Malformed):
                        decode(checked(damaged))
                for length in spread(value_bytes, 8):
                    fields = struct.pack("<2Q", index_bytes, length)
                    with self.assertRaises(Malformed):
                        decode(checked(container[:32] + fields + container[48:index_end + length]))

    def test_bytes_left_over_are_malformed(self):
        for name, container in supported_containers():
            index_bytes, value_bytes = struct.unpack_from("<2Q", container, 32)
            for byte in (b"\x00", b"\x01", b"\xff"):
                with self.subTest(name):
                    with self.assertRaises(Malformed):
                        decode(container + byte)
                    fields = struct.pack("<2Q", index_bytes, value_bytes + 1)
                    with self.assertRaises(Malformed):
                        decode(checked(container[:32] + fields + container[48:] + byte))
                    if index_bytes > 0:
                        fields = struct.pack("<2Q", index_bytes + 1, value_bytes)
                        index_end = 64 + index_bytes
                        damaged = container[:32] + fields + container[48:index_end] + byte + container[index_end:]
                        with self.assertRaises(Malformed):
                            decode(checked(damaged))

    def test_a_changed_byte_is_refused(self):
        for name, container in supported_containers():
            with self.subTest(name):
                for place in spread(len(container), 20):
                    damaged = bytearray(container)
                    damaged[place] ^= 1 << place % 8
                    self.assertIsNone(self.outcome(damaged))

    def test_a_changed_byte_with_its_checksum_decodes_or_is_refused(self):
        for name, container in supported_containers():
            with self.subTest(name):
                for place in spread(len(container), 12):
                    damaged = bytearray(container)
                    damaged[place] ^= (0x01, 0x80, 0xFF)[place % 3]
                    self.check_stream(self.outcome(checked(bytes(damaged))))

    def check_stream(self, stream: Stream | None) -> None:
        """Requires what holds for every decoded stream."""
        if stream is not None:
            indices = list(stream.indices)
            self.assertEqual(len(indices), len(stream.values))
            self.assertEqual(indices, sorted(set(indices)))
            self.assertTrue(all(0 <= index < stream.dimension for index in indices))


class RefusalTest(unittest.TestCase):
    """Refuses containers that claim too much, and those of other rules."""

    def test_few_bytes_that_claim_many_entries_are_refused_undecoded(self):
        many = 1 << 32
        runs = bytes.fromhex("0100000001000000")
        for container in (container_of(0, SIGN_MEAN, many, many, b"", ZEROS),
                          container_of(10, SIGN_MEAN, many, many, runs, ZEROS)):
            with self.assertRaises(LimitExceeded):
                decode(container)
        for index_codec in INDEX_CODECS:
            with self.assertRaises((Malformed, Unsupported)):
                decode(container_of(index_codec, SIGN_MEAN, many, Limits().count, bytes(16), ZEROS))
        for value_codec in VALUE_CODECS:
            if value_codec != SIGN_MEAN:
                count = Limits().count
                with self.assertRaises(Malformed):
                    decode(container_of(0, value_codec, count, count, b"", bytes([2, 1, 0, 0, 1, 0, 0, 0])))

    def test_a_dimension_that_the_caller_rejects_is_malformed(self):
        container = container_of(RAW, RAW, 16, 0, b"", b"")
        self.assertEqual(decode(container, 16).indices, [])
        with self.assertRaises(Malformed):
            decode(container, 17)

    def test_a_filter_over_2_to_the_28_indices_is_malformed(self):
        for index_codec in (4, *range(14, 21)):
            with self.assertRaises(Malformed):
                decode(container_of(index_codec, SIGN_MEAN, (1 << 28) + 1, 1, bytes(64), ZEROS))

    def test_values_that_are_not_finite_need_a_job_that_accepts_them(self):
        section = bytes.fromhex("0000c07f 000080ff 0100807f")
        container = container_of(0, RAW, 3, 3, b"", section)
        with self.assertRaises(NonFinite):
            decode(container)
        decoded = decode(container, accept_non_finite=True)
        self.assertEqual(bits_of(decoded.values), ["7fc00000", "ff800000", "7f800001"])


class KnownAnswerTest(unittest.TestCase):
    """Checks the examples of the pages in protocol/wire."""

    def test_xxh3(self):
        answers = {0: (0x2D06800538D394C2, 0xCC1CA35A1B089C5C), 1: (0xC44BDFF4074EECDB, 0xD5DD68911C7F195D),
                   5: (0xB075753A84CA0FBE, 0x3D4873CD20419439), 12: (0x5ACE6A511C10894B, 0xC8115CCB8E7FCC9F),
                   40: (0xCDB099831361923C, 0x056C60104ED26355), 200: (0xF42A8864FEAF0703, 0xD87055AC291495BA),
                   3000: (0x1B846747012C24AA, 0x4F6CC7C562BFC93E)}
        for n, (unseeded, seeded) in answers.items():
            data = bytes(i % 251 for i in range(n))
            self.assertEqual((xxh3_64(data), xxh3_64(data, 0x0123456789ABCDEF)), (unseeded, seeded))

    def test_random_numbers(self):
        seed = 0x0123456789ABCDEF
        self.assertEqual(philox(0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8))
        self.assertEqual(philox(seed, 1, 0), (0xADCA1466, 0x523E0D85, 0x65401425, 0xB299DA3F))
        draws = Sequence(seed, 0x7031)
        self.assertEqual([draws.next_below(n) for n in (10, 9, 8, 1000)], [5, 7, 3, 155])
        probes = [mix(index + hash_offset(seed, p) & 0xFFFFFFFF) * 32 >> 32 for index in (3, 17) for p in range(3)]
        self.assertEqual(probes, [6, 0, 26, 20, 18, 9])

    def test_bits(self):
        bits = Bits(bytes.fromhex("9500"))
        self.assertEqual([bits.take(3), bits.take(4), bits.take(2)], [5, 2, 1])
        bits.end()
        codes = canonical_codes([1, 2, 0, 3, 3])
        self.assertEqual(codes, {(1, 0b0): 0, (2, 0b10): 1, (3, 0b110): 3, (3, 0b111): 4})
        self.assertEqual(huffman_lengths([0, 7, 0]), [0, 1, 0])
        for lengths in ([1, 2], [1, 1, 1], [2], [33, 1]):
            with self.assertRaises(Malformed):
                canonical_codes(lengths)

    def test_container(self):
        container = bytes.fromhex("4d52433101010003 0100000000000000 1000000000000000 0300000000000000 0200000000000000"
                                  "0c00000000000000 0000000000000000 93c2b56892075ca2 0032 0000803f000000c00000003f")
        decoded = decode(container, 16)
        self.assertEqual((decoded.indices, list(decoded.values)), ([1, 4, 5], [1.0, -2.0, 0.5]))

    def test_bloom_filter(self):
        section = bytes.fromhex("efcdab8967452301 2000000003000000 41021404")
        self.assertEqual(decode(container_of(4, SIGN_MEAN, 32, 2, section, ZEROS)).indices, [3, 17])

    def test_every_table_of_the_adaptive_codec_has_1024_states(self):
        for shape in range(8):
            for context in range(65):
                frequencies = [frequency for _, _, frequency in alphabet(shape, context)]
                self.assertEqual(sum(frequencies), 1024)
                self.assertGreaterEqual(min(frequencies), 1)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-") and Path(sys.argv[1]).is_dir():
        VECTORS = Path(sys.argv.pop(1))
    unittest.main()

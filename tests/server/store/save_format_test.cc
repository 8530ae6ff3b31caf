#include "server/store/save_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/protocol/example_messages.h"
#include "tests/support/format_versions.h"

namespace millrace::server {
namespace {

using ::testing::HasSubstr;

StoreFile example() {
  StoreFile file;
  file.header = {.job = 7, .name = "train", .shard = 1, .shard_count = 2, .layout_hash = 99, .parts = 2, .spec = {}};
  file.header.spec = protocol::example_spec();
  file.header.spec.store.optimizer = optimizer_from_text("adam:0.001").value();
  for (const uint32_t part : {1u, 3u}) {
    StorePart& one = file.parts.emplace_back();
    one.part = part;
    one.position = {12, protocol::example_update().summary};
    one.arrays.weights = {1, -2, 0.5F};
    one.arrays.states = {std::vector<float>{3, 4, 5}, std::vector<float>{6, 7, 8}};
    one.arrays.steps = 112;
  }
  return file;
}

ByteBuffer encoded_file(const StoreFile& file) {
  ByteBuffer bytes(store_file_magic().begin(), store_file_magic().end());
  StoreRecord record = encode_store_header(file.header);
  const auto add = [&bytes](const StoreRecord& one) { bytes.insert(bytes.end(), one.bytes.begin(), one.bytes.end()); };
  add(record);
  for (const StorePart& part : file.parts) {
    record = encode_store_part(part.part, part.position, part.arrays, record.hash);
    EXPECT_EQ(store_record_hash(record.bytes), record.hash);
    add(record);
  }
  add(encode_store_end(static_cast<uint32_t>(file.parts.size()), record.hash));
  return bytes;
}

Result<StoreFile> read(ByteSpan bytes) {
  const uint64_t size = bytes.size();
  return read_store_file(size, [&bytes](std::span<uint8_t> out) -> Status {
    EXPECT_LE(out.size(), bytes.size()) << "asks for more than there is";
    if (out.size() > bytes.size()) return fail(ErrorCode::kIo, "asked for more than there is");
    std::ranges::copy(bytes.first(out.size()), out.begin());
    bytes = bytes.subspan(out.size());
    return {};
  });
}

TEST(StoreFileTest, GoesRoundTrip) {
  const auto file = read(encoded_file(example()));
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(*file, example());
  StoreFile none = example();
  none.header.parts = 0;
  none.parts.clear();
  EXPECT_EQ(read(encoded_file(none)).value(), none) << "a shard without parts of the job";
}

TEST(StoreFileTest, ItsBytesAreThoseOfItsVersion) {
  StoreFile file = example();
  millrace::testing::Fingerprint now;
  // Without the job specification, which has a version of its own, and without hashes, which are of it as well.
  const ByteBuffer spec = protocol::encode_job_spec(file.header.spec);
  const ByteBuffer header = encode_store_header(file.header).bytes;
  const auto at = std::ranges::search(header, spec);
  ASSERT_EQ(at.size(), spec.size());
  now.add(ByteSpan(header).first(static_cast<size_t>(at.begin() - header.begin()) - sizeof(uint32_t)).subspan(8));
  EXPECT_EQ(header.end() - at.end(), 8) << "only the hash follows the specification";
  for (const StorePart& part : file.parts) now.add(encode_store_part(part.part, part.position, part.arrays, 0).bytes);
  now.add(encode_store_end(2, 0).bytes);
  millrace::testing::expect_format_version("store_file", store_file_magic().back() - uint64_t{'0'}, now,
                                           "the last digit of kMagic in server/store/save_format.cc");
}

TEST(StoreFileTest, EveryTruncationIsFound) {
  const ByteBuffer bytes = encoded_file(example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto file = read(ByteSpan(bytes).first(size));
    ASSERT_FALSE(file.has_value()) << size;
    EXPECT_EQ(file.error().code, ErrorCode::kMalformed) << size << ": " << file.error().message;
  }
}

TEST(StoreFileTest, EveryChangedByteIsFound) {
  const ByteBuffer bytes = encoded_file(example());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const uint8_t flip : std::initializer_list<uint8_t>{0x01, 0x80}) {
      ByteBuffer damaged = bytes;
      damaged[at] = static_cast<uint8_t>(damaged[at] ^ flip);
      EXPECT_FALSE(read(damaged).has_value()) << at;
    }
  }
}

TEST(StoreFileTest, RecordsOfTwoSavesDoNotMakeOne) {
  StoreFile other = example();
  other.parts[0].arrays.weights[0] = 2;
  const ByteBuffer a = encoded_file(example());
  const ByteBuffer b = encoded_file(other);
  ASSERT_EQ(a.size(), b.size());
  const StoreRecord header = encode_store_header(example().header);
  const size_t first = store_file_magic().size() + header.bytes.size();
  const size_t second =
      first + encode_store_part(1, example().parts[0].position, example().parts[0].arrays, 0).bytes.size();
  ByteBuffer mixed(a.begin(), a.begin() + static_cast<ptrdiff_t>(second));
  mixed.insert(mixed.end(), b.begin() + static_cast<ptrdiff_t>(second), b.end());
  EXPECT_THAT(read(mixed).error().message, HasSubstr("checksum"));
}

TEST(StoreFileTest, WhatDoesNotHoldTogetherIsRefused) {
  const auto refusal = [](const std::function<void(StoreFile&)>& change) {
    StoreFile file = example();
    change(file);
    const auto got = read(encoded_file(file));
    return got ? std::string("none") : got.error().message;
  };
  EXPECT_THAT(refusal([](StoreFile& f) { f.parts[1].part = 1; }), HasSubstr("out of order"));
  EXPECT_THAT(refusal([](StoreFile& f) { f.parts[0].arrays.weights.clear(); }), HasSubstr("does not hold together"));
  EXPECT_THAT(refusal([](StoreFile& f) { f.parts[0].arrays.states[1].pop_back(); }), HasSubstr("does not hold"));
  EXPECT_THAT(refusal([](StoreFile& f) { f.parts[0].arrays.states[0][1] = INFINITY; }), HasSubstr("not finite"));
  EXPECT_THAT(refusal([](StoreFile& f) { f.parts[0].arrays.weights[2] = NAN; }), HasSubstr("not finite"));
  EXPECT_THAT(refusal([](StoreFile& f) { f.header.parts = 3; }), HasSubstr("does not hold together"));
  EXPECT_THAT(refusal([](StoreFile& f) { f.header.parts = 1; }), HasSubstr("its end is not one"));
  EXPECT_THAT(refusal([](StoreFile& f) { f.header.name = "a\nb"; }), HasSubstr("its header"));
  EXPECT_THAT(refusal([](StoreFile& f) {
                std::swap(f.parts[0].position.summary.workers[0], f.parts[0].position.summary.workers[1]);
              }),
              HasSubstr("does not hold together"));
}

TEST(StoreFileTest, LaterVersionsAreUnsupportedAndOtherFilesMalformed) {
  ByteBuffer bytes = encoded_file(example());
  ++bytes[7];
  EXPECT_EQ(read(bytes).error().code, ErrorCode::kUnsupported);
  bytes[0] = 'X';
  EXPECT_EQ(read(bytes).error().code, ErrorCode::kMalformed);
}

TEST(StoreFileTest, AJobBeginsWithASaveOfItsTensorsOptimizerAndParts) {
  const StoreFile saved = example();
  StoreHeader own = saved.header;
  const auto difference = [&](const std::function<void(StoreHeader&)>& change) {
    StoreHeader changed = own;
    change(changed);
    const Status fits = may_start_with(saved, changed);
    return fits ? std::string("none") : fits.error().message;
  };
  EXPECT_EQ(difference([](StoreHeader&) {}), "none");
  EXPECT_EQ(difference([](StoreHeader& h) {
              h.job = 8;
              h.spec.store.begin = protocol::StoreBegin::kSaved;
              h.spec.workers = 9;
              h.spec.mode = protocol::Mode::kPartial;
              h.spec.tensors[0].select.reset();
              h.spec.codec_down.index = IndexCodecId::kBitmap;
            }),
            "none")
      << "workers, mode and codecs may be others";
  EXPECT_THAT(difference([](StoreHeader& h) { h.name = "x"; }), HasSubstr("its name is 'train'"));
  EXPECT_THAT(difference([](StoreHeader& h) { h.spec.store.optimizer.rate = 0.5; }),
              HasSubstr("store: rate 0.001 here, 0.5 there"));
  EXPECT_THAT(difference([](StoreHeader& h) { h.spec.tensors[1].dimension = 65; }),
              HasSubstr("tensor 'bias': dimension 64 here, 65 there"));
  EXPECT_THAT(difference([](StoreHeader& h) { h.spec.tensors.pop_back(); }), HasSubstr("2 tensors here, 1 there"));
  EXPECT_THAT(difference([](StoreHeader& h) { h.shard_count = 3; }),
              HasSubstr("of shard 1 of 2, this is shard 1 of 3"));
  EXPECT_THAT(difference([](StoreHeader& h) { h.layout_hash = 1; }), HasSubstr("cut into other parts"));
}

}  // namespace
}  // namespace millrace::server

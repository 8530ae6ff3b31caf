#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/hash.h"
#include "tests/protocol/example_messages.h"
#include "tests/support/format_versions.h"
#include "worker/core/rejoin/saved_state.h"

namespace millrace::worker {
namespace {

SavedState some_state() {
  SavedState state;
  state.job = 7;
  state.job_name = "job";
  state.spec_hash = 1;
  state.layout_hash = 2;
  state.worker = 3;
  state.incarnation = 4;
  state.epoch = 5;
  state.branch = 6;
  state.parts = {{.part = 0, .n = 10, .decided_in = 3, .log_digest = 21, .branch = 2},
                 {.part = 1, .n = 11, .decided_in = 5, .log_digest = 22, .branch = 4}};
  SavedTensor sparse;
  sparse.name = "sparse";
  sparse.steps_pushed = 12;
  sparse.residual = Stream::empty(100);
  sparse.residual.indices = {3, 99};
  sparse.residual.values = {1.5f, -2};
  SavedTensor dense;
  dense.name = "dense";
  dense.residual.dimension = 3;
  dense.residual.dense = true;
  dense.residual.values = {1, 0, 2};
  dense.momentum = Stream::empty(3);
  dense.momentum->indices = {1};
  dense.momentum->values = {0.25f};
  state.tensors = {sparse, dense};
  return state;
}

TEST(SavedState, AStateIsUnchangedByEncodingAndDecoding) {
  const SavedState state = some_state();
  const auto read = decode_saved_state(encode_saved_state(state));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->job, 7u);
  EXPECT_EQ(read->job_name, "job");
  EXPECT_EQ(read->spec_hash, 1u);
  EXPECT_EQ(read->layout_hash, 2u);
  EXPECT_EQ(read->worker, 3u);
  EXPECT_EQ(read->incarnation, 4u);
  EXPECT_EQ(read->epoch, 5u);
  EXPECT_EQ(read->branch, 6u);
  ASSERT_EQ(read->parts.size(), 2u);
  EXPECT_EQ(read->parts[1].part, 1u);
  EXPECT_EQ(read->parts[1].n, 11u);
  EXPECT_EQ(read->parts[1].decided_in, 5u);
  EXPECT_EQ(read->parts[1].log_digest, 22u);
  EXPECT_EQ(read->parts[1].branch, 4u);
  ASSERT_EQ(read->tensors.size(), 2u);
  EXPECT_EQ(read->tensors[0].name, "sparse");
  EXPECT_EQ(read->tensors[0].steps_pushed, 12u);
  EXPECT_FALSE(read->tensors[0].momentum.has_value());
  EXPECT_EQ(read->tensors[0].residual.indices, state.tensors[0].residual.indices);
  EXPECT_EQ(read->tensors[0].residual.values, state.tensors[0].residual.values);
  EXPECT_TRUE(read->tensors[1].residual.dense);
  EXPECT_EQ(read->tensors[1].residual.values, state.tensors[1].residual.values);
  ASSERT_TRUE(read->tensors[1].momentum.has_value());
  EXPECT_EQ(read->tensors[1].momentum->dimension, 3u);
  EXPECT_EQ(read->tensors[1].momentum->indices, (IndexBuffer{1}));
  EXPECT_EQ(read->tensors[1].momentum->values, (Buffer<float>{0.25f}));
}

TEST(SavedState, GoldenBytes) {
  SavedState state;
  state.job_name = "j";
  const ByteBuffer bytes = encode_saved_state(state);
  const std::vector<uint8_t> head = {'M', 'L', 'R', 'S', 'A', 'V', 'E', '3', 63, 0, 0, 0, 0, 0, 0, 0};
  ASSERT_EQ(bytes.size(), 16u + 63u + 8u);
  EXPECT_TRUE(std::equal(head.begin(), head.end(), bytes.begin()));
}

TEST(SavedState, ItsBytesAreThoseOfItsVersion) {
  SavedState state = some_state();
  state.tensors[0].weights.assign(100, 0.5f);
  state.parts[1].summary = protocol::example_update().summary;
  const ByteBuffer bytes = encode_saved_state(state);
  millrace::testing::expect_format_version("saved_state", bytes[7] - uint64_t{'0'},
                                           millrace::testing::Fingerprint().add(bytes),
                                           "kVersion in worker/core/rejoin/saved_state.cc");
}

TEST(SavedState, EveryTruncationIsRefused) {
  const ByteBuffer bytes = encode_saved_state(some_state());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto read = decode_saved_state(ByteSpan(bytes).first(size));
    ASSERT_FALSE(read.has_value()) << size;
    EXPECT_EQ(read.error().code, ErrorCode::kMalformed);
  }
}

TEST(SavedState, EveryAlteredByteIsRefused) {
  ByteBuffer bytes = encode_saved_state(some_state());
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= 0x10;
    EXPECT_FALSE(decode_saved_state(bytes).has_value()) << at;
    bytes[at] ^= 0x10;
  }
  EXPECT_TRUE(decode_saved_state(bytes).has_value());
}

TEST(SavedState, HostileFieldsUnderAValidChecksumAreRefused) {
  const ByteBuffer good = encode_saved_state(some_state());
  size_t refused = 0;
  for (size_t at = 16; at + 8 < good.size(); ++at) {
    for (const uint8_t value : {uint8_t{0xff}, uint8_t{0x80}}) {
      ByteBuffer bytes = good;
      bytes[at] = value;
      const uint64_t checksum = hash64(ByteSpan(bytes).first(bytes.size() - 8));
      std::copy_n(reinterpret_cast<const uint8_t*>(&checksum), 8, bytes.end() - 8);
      // Any answer but a crash, a huge allocation or a stream that is not well formed.
      const auto read = decode_saved_state(bytes);
      refused += read.has_value() ? 0 : 1;
      if (!read) continue;
      for (const SavedTensor& tensor : read->tensors) {
        EXPECT_TRUE(validate(tensor.residual.view()).has_value());
        if (tensor.momentum) {
          EXPECT_TRUE(validate(tensor.momentum->view()).has_value());
        }
      }
    }
  }
  EXPECT_GT(refused, 50u);
}

}  // namespace
}  // namespace millrace::worker

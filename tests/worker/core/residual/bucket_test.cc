#include "worker/core/residual/bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/base/hash.h"
#include "kernels/base/random.h"
#include "tests/support/index_ledger.h"

namespace millrace::worker {
namespace {

constexpr uint64_t kBucketDimension = 20'000;

/// A job of one tensor in several parts that sends 4-bit values.
struct QuantizedJob {
  explicit QuantizedJob(protocol::CodecError codec_error, const SelectionSpec& select = {},
                        protocol::NonFinite non_finite = protocol::NonFinite::kRefuse) {
    spec.name = "bucket";
    spec.non_finite = non_finite;
    spec.tensors.push_back({.name = "w", .dimension = kBucketDimension});
    spec.select = select;
    spec.parts_per_shard = 3;
    spec.codec_up = codec_from_text("gap+qsgd4").value();
    spec.codec_error = codec_error;
    layout = protocol::plan_layout(spec, 1);
    ledger = std::make_unique<testing::IndexLedger>(layout);
    bucket = std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts, ledger.get());
  }

  /// Pushes a stream and codes all of it; returns the entries that receivers decode.
  std::map<uint32_t, float> send(const Stream& pushed) {
    EXPECT_TRUE(bucket->slot(0).add_sparse(pushed.indices, pushed.values, 1));
    return send_pushed();
  }
  std::map<uint32_t, float> send_pushed() {
    EXPECT_TRUE(bucket->select(0));
    std::map<uint32_t, float> sent;
    EncodeOptions options;
    options.spec = spec.codec_up;
    for (size_t at = 0; at < layout.parts.size(); ++at) {
      const auto coded = bucket->code(at, options);
      EXPECT_TRUE(coded);
      const StreamView& stream = coded->sent.view;
      for (size_t i = 0; i < stream.indices.size(); ++i) {
        sent[static_cast<uint32_t>(layout.parts[at].begin) + stream.indices[i]] = stream.values[i];
      }
    }
    return sent;
  }

  protocol::JobSpec spec;
  protocol::JobLayout layout;
  std::unique_ptr<testing::IndexLedger> ledger;
  std::unique_ptr<Bucket> bucket;
};

Stream some_gradient() {
  RandomSequence random(random_key(3));
  Stream stream = Stream::empty(kBucketDimension);
  for (uint32_t index = 0; index < kBucketDimension; index += 1 + static_cast<uint32_t>(random.next_below(9))) {
    stream.indices.push_back(index);
    stream.values.push_back(static_cast<float>(random.next_normal()));
  }
  return stream;
}

TEST(Bucket, ACodecErrorIsInTheResidualBeforeAndAfterResolution) {
  QuantizedJob job(protocol::CodecError::kRetain);
  const Stream pushed = some_gradient();
  auto sent = job.send(pushed);
  ASSERT_EQ(sent.size(), pushed.count());
  ASSERT_TRUE(job.bucket->unresolved());
  const Stream before = job.bucket->residual();
  const auto lost_before = job.ledger->lost(*job.bucket);
  const double dropped_before = job.bucket->counters().dropped_error;
  while (job.bucket->resolve_one_deferred()) {
  }
  ASSERT_FALSE(job.bucket->unresolved());
  const Stream after = job.bucket->residual();
  EXPECT_EQ(before.indices, after.indices);
  EXPECT_EQ(before.values, after.values);
  const auto lost = job.ledger->lost(*job.bucket);
  EXPECT_TRUE(std::ranges::equal(lost_before, lost));
  EXPECT_EQ(dropped_before, job.bucket->counters().dropped_error);
  std::map<uint32_t, float> stays;
  for (size_t i = 0; i < after.indices.size(); ++i) stays[after.indices[i]] = after.values[i];
  uint64_t rounded = 0;
  for (size_t i = 0; i < pushed.indices.size(); ++i) {
    const uint32_t index = pushed.indices[i];
    const double kept = static_cast<double>(stays[index]) + lost[index];
    ASSERT_EQ(static_cast<double>(sent[index]) + kept, static_cast<double>(pushed.values[i])) << "index " << index;
    rounded += lost[index] != 0 ? 1 : 0;
  }
  EXPECT_GT(rounded, 0) << "no difference went beyond f32: the case that the ledger is for was not met";
}

TEST(Bucket, ADroppedCodecErrorIsInTheLedgerAtOnce) {
  QuantizedJob job(protocol::CodecError::kDrop);
  const Stream pushed = some_gradient();
  auto sent = job.send(pushed);
  EXPECT_FALSE(job.bucket->unresolved());
  EXPECT_EQ(job.bucket->residual().count(), 0);
  const auto lost = job.ledger->lost(*job.bucket);
  double dropped = 0;
  double magnitude = 0;
  for (size_t i = 0; i < pushed.indices.size(); ++i) {
    const uint32_t index = pushed.indices[i];
    ASSERT_EQ(static_cast<double>(sent[index]) + lost[index], static_cast<double>(pushed.values[i]))
        << "index " << index;
    dropped += lost[index];
    magnitude += std::abs(lost[index]);
  }
  EXPECT_GT(magnitude, std::abs(dropped)) << "errors of both signs";
  // What f32 does not hold of an error is counted beside it.
  EXPECT_NEAR(job.bucket->counters().dropped_magnitude, magnitude, magnitude * 0x1p-22);
  EXPECT_NEAR(job.bucket->counters().dropped_error, dropped, 1e-9 * static_cast<double>(pushed.count()));
}

/// One run of steps that overlap by one: what happens, in which order, follows from the seed; when it is settled, from
/// `settle`.
class OverlappingSteps {
 public:
  using Settle = std::function<void(Bucket& bucket)>;
  OverlappingSteps(uint64_t seed, Settle settle)
      : job_(protocol::CodecError::kRetain, {.selection = SelectionId::kTopK, .density = 0.15}),
        random_(random_key(seed)),
        settle_(std::move(settle)) {}

  void run(uint64_t steps) {
    for (uint64_t step = 0; step < steps; ++step) {
      push();
      ASSERT_TRUE(bucket().select(step));
      // Each part is coded, and its update of the step before comes earlier or later than that.
      std::vector<std::pair<size_t, bool>> events;
      for (size_t at = 0; at < job_.layout.parts.size(); ++at) {
        const bool coded_first = random_.next_below(2) == 0;
        events.insert(events.begin() + static_cast<std::ptrdiff_t>(random_.next_below(events.size() + 1)),
                      {{at, coded_first}, {at, !coded_first}});
      }
      for (const auto& [at, is_code] : events) {
        is_code ? code(at) : update(at);
        look();
      }
    }
    for (size_t at = 0; at < job_.layout.parts.size(); ++at) update(at);
    look();
    // The first half is taken, the rest stays.
    const Stream taken = bucket().take_residual(0, kBucketDimension / 2);
    take_down(taken);
    look();
  }

  std::vector<uint64_t> seen;  ///< hashes of all that could be asked for, after every event
  uint64_t unsettled_met = 0;

 private:
  Bucket& bucket() { return *job_.bucket; }

  void push() {
    Stream gradient = Stream::empty(kBucketDimension);
    for (uint32_t index = 0; index < kBucketDimension; index += 1 + static_cast<uint32_t>(random_.next_below(19))) {
      gradient.indices.push_back(index);
      gradient.values.push_back(static_cast<float>(random_.next_normal()));
    }
    ASSERT_TRUE(bucket().slot(0).add_sparse(gradient.indices, gradient.values, 1));
  }
  void code(size_t at) {
    EncodeOptions options;
    options.spec = job_.spec.codec_up;
    auto coded = bucket().code(at, options);
    ASSERT_TRUE(coded);
    seen.push_back(hash64(coded->container.bytes));
    in_flight_[at].push_back(std::move(coded->sent));
  }
  /// Of the oldest step in flight: not counted, or carried in part.
  void update(size_t at) {
    if (in_flight_[at].empty()) return;
    SharedStream sent = std::move(in_flight_[at].front());
    in_flight_[at].pop_front();
    if (random_.next_below(4) == 0) return bucket().give_back(at, sent.copy());
    Stream carried = Stream::empty(sent.view.dimension);
    for (const uint32_t index : sent.view.indices) {
      if (random_.next_below(2) == 0) continue;
      carried.indices.push_back(index);
      carried.values.push_back(1);
    }
    bucket().return_uncarried(at, std::move(sent), SharedStream::from(std::move(carried)));
  }

  void look() {
    settle_(bucket());
    unsettled_met += bucket().unresolved() ? 1 : 0;
    take_down(bucket().residual());
    const auto lost = job_.ledger->lost(bucket());
    seen.push_back(hash64(bytes_of(std::span<const double>(lost))));
    const BucketCounters counters = bucket().counters();
    seen.push_back(counters.entries_returned);
    seen.push_back(std::bit_cast<uint64_t>(counters.dropped_error));
  }
  void take_down(const Stream& stream) {
    seen.push_back(hash64(bytes_of(std::span<const uint32_t>(stream.indices))));
    seen.push_back(hash64(bytes_of(std::span<const float>(stream.values))));
  }
  template <typename Number>
  static ByteSpan bytes_of(std::span<const Number> values) {
    return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
  }

  QuantizedJob job_;
  RandomSequence random_;
  Settle settle_;
  std::map<size_t, std::deque<SharedStream>> in_flight_;
};

TEST(Bucket, WhenItIsSettledDoesNotShowInOneBit) {
  constexpr uint64_t kSteps = 12;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    OverlappingSteps never(seed, [](Bucket&) {});
    OverlappingSteps at_once(seed, [](Bucket& bucket) {
      while (bucket.resolve_one_deferred()) {
      }
    });
    RandomSequence moments(random_key(seed, 7));
    OverlappingSteps sometimes(seed, [&](Bucket& bucket) {
      for (uint64_t pieces = moments.next_below(3); pieces > 0; --pieces) bucket.resolve_one_deferred();
    });
    for (OverlappingSteps* steps : {&never, &at_once, &sometimes}) ASSERT_NO_FATAL_FAILURE(steps->run(kSteps));
    EXPECT_GT(never.unsettled_met, sometimes.unsettled_met);
    EXPECT_GT(sometimes.unsettled_met, at_once.unsettled_met);
    EXPECT_EQ(never.seen, at_once.seen) << "seed " << seed;
    EXPECT_EQ(sometimes.seen, at_once.seen) << "seed " << seed;
  }
}

/// Pushes rows into one bucket and their entries into another one; both have to send the same.
void expect_rows_equal_entries(uint32_t width, const std::vector<uint32_t>& rows, const std::vector<float>& values,
                               protocol::NonFinite non_finite = protocol::NonFinite::kRefuse) {
  std::vector<uint32_t> indices;
  for (const uint32_t row : rows) {
    for (uint32_t at = 0; at < width; ++at) indices.push_back(row * width + at);
  }
  std::vector<std::map<uint32_t, float>> sent;
  std::vector<uint64_t> dropped;
  for (const bool by_row : {true, false}) {
    QuantizedJob job(protocol::CodecError::kRetain, {}, non_finite);
    for (int step = 0; step < 3; ++step) {  // later ones write over the arrays of the first
      PushSlot& slot = job.bucket->slot(0);
      const Status pushed = by_row ? slot.add_rows(width, rows, values, 1) : slot.add_sparse(indices, values, 1);
      ASSERT_TRUE(pushed) << pushed.error().message;
      sent.push_back(job.send_pushed());
      dropped.push_back(slot.non_finite_dropped());
    }
  }
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(sent[step], sent[3 + step]) << width << " " << step;
    EXPECT_EQ(dropped[step], dropped[3 + step]);
  }
}

TEST(Rows, SendWhatTheirEntriesWouldSend) {
  RandomSequence random(random_key(9, 0, 0));
  for (const uint32_t width : {1U, 3U, 16U, 100U}) {
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < kBucketDimension / width; row += 1 + static_cast<uint32_t>(random.next_below(5)))
      rows.push_back(row);
    std::vector<float> values(rows.size() * width);
    for (float& value : values) value = static_cast<float>(random.next_normal());
    expect_rows_equal_entries(width, rows, values);
    expect_rows_equal_entries(width, {}, {});
    std::vector<float> holes = values;
    holes[holes.size() / 2] = std::numeric_limits<float>::quiet_NaN();
    expect_rows_equal_entries(width, rows, holes, protocol::NonFinite::kDropAndCount);
    std::ranges::reverse(rows);
    rows.back() = rows.front();
    expect_rows_equal_entries(width, rows, values);
  }
}

TEST(Rows, OfAnotherSizeOrWithoutAPlaceAreRefusedAndNothingIsTaken) {
  QuantizedJob job(protocol::CodecError::kRetain);
  PushSlot& slot = job.bucket->slot(0);
  const auto refusal = [&](uint32_t width, const std::vector<uint32_t>& rows, const std::vector<float>& values) {
    const Status pushed = slot.add_rows(width, rows, values, 1);
    return pushed ? ErrorCode::kInternal : pushed.error().code;
  };
  EXPECT_EQ(refusal(4, {1}, std::vector<float>(3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(4, {5'000}, std::vector<float>(4)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(0, {}, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(2, {1}, {1, std::numeric_limits<float>::infinity()}), ErrorCode::kNonFinite);
  EXPECT_FALSE(slot.filled());
  EXPECT_EQ(refusal(2, {1}, {1, 2}), ErrorCode::kInternal);
  EXPECT_EQ(refusal(2, {1}, {1, 2}), ErrorCode::kInvalidArgument) << "twice";
  EXPECT_EQ(job.send_pushed().size(), 2u);
}

}  // namespace
}  // namespace millrace::worker

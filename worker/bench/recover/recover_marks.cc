#include "worker/bench/recover/recover_marks.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace millrace::bench {
namespace {

constexpr uint32_t kPushesAMark = 8;
constexpr uint32_t kBitsAPush = 3;
constexpr uint32_t kPushesMax = 65'536;

/// The first index from `from` on of the class.
uint64_t first_of_class(uint64_t from, uint64_t stride, uint64_t which) {
  return from + (which + stride - from % stride) % stride;
}

uint64_t count_of_class(uint64_t begin, uint64_t end, uint64_t stride, uint64_t which) {
  const uint64_t first = first_of_class(begin, stride, which);
  return first < end ? (end - 1 - first) / stride + 1 : 0;
}

/// What all weights of one part are to be.
std::vector<float> expected_weights(const RecoverMarks& marks, std::span<const float> weights, size_t part,
                                    const std::vector<std::vector<uint64_t>>& steps) {
  const auto [begin, end] = marks.parts[part];
  std::vector<float> by_class(marks.stride, 0.0f);
  std::vector<float> expected(end - begin, 0.0f);
  for (uint32_t serial = 0; serial < steps.size(); ++serial) {
    for (uint32_t push = 0; push < steps[serial].size(); ++push) {
      const auto times = static_cast<float>(marks.counted(weights, part, serial, push));
      if (times == 0) continue;
      by_class[steps[serial][push] % (marks.stride - 1)] += times;
      expected[marks.mark(part, serial, push) - begin] += times * RecoverMarks::mark_value(push);
    }
  }
  for (uint64_t index = begin; index < end; ++index) {
    const uint64_t which = index % marks.stride;
    if (which != marks.stride - 1) expected[index - begin] = by_class[which];
  }
  return expected;
}

}  // namespace

Result<RecoverMarks> RecoverMarks::make(uint64_t n, double density, std::vector<std::pair<uint64_t, uint64_t>> parts,
                                        uint32_t serials) {
  RecoverMarks marks;
  marks.n = n;
  marks.stride = std::clamp<uint64_t>(static_cast<uint64_t>(std::llround(1 / density)), 2, n);
  marks.parts = std::move(parts);
  marks.serials = serials;
  uint64_t slots = kPushesMax / kPushesAMark;
  for (const auto& [begin, end] : marks.parts)
    slots = std::min(slots, count_of_class(begin, end, marks.stride, marks.stride - 1) / serials);
  if (slots == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "a dimension of " + std::to_string(n) + " at this density has no room to mark the pushes of " +
                    std::to_string(serials) + " processes in " + std::to_string(marks.parts.size()) + " parts");
  }
  marks.pushes_max = static_cast<uint32_t>(slots) * kPushesAMark;
  return marks;
}

uint64_t RecoverMarks::mark(size_t part, uint32_t serial, uint32_t push) const {
  const uint64_t slot = uint64_t{serial} * (pushes_max / kPushesAMark) + push / kPushesAMark;
  return first_of_class(parts[part].first, stride, stride - 1) + slot * stride;
}

float RecoverMarks::mark_value(uint32_t push) {
  return static_cast<float>(uint32_t{1} << (kBitsAPush * (push % kPushesAMark)));
}

Stream RecoverMarks::pushed(uint32_t serial, uint32_t push, uint64_t step) const {
  MILLRACE_CHECK(serial < serials && push < pushes_max, serial, push);
  Stream stream = Stream::empty(n);
  const float value = mark_value(push);
  const auto add = [&stream](uint64_t index, float what) {
    stream.indices.push_back(static_cast<uint32_t>(index));
    stream.values.push_back(what);
  };
  size_t part = 0;
  const auto add_marks_below = [&](uint64_t index) {
    for (; part < parts.size() && mark(part, serial, push) < index; ++part) add(mark(part, serial, push), value);
  };
  for (uint64_t index = step % (stride - 1); index < n; index += stride) {
    add_marks_below(index);
    add(index, 1);
  }
  add_marks_below(n);
  return stream;
}

uint32_t RecoverMarks::counted(std::span<const float> weights, size_t part, uint32_t serial, uint32_t push) const {
  const float weight = weights[mark(part, serial, push)];
  if (!(weight >= 0 && weight < 0x1p24f)) return 0;
  return (static_cast<uint32_t>(weight) >> (kBitsAPush * (push % kPushesAMark))) & 7;
}

RecoverVerdict judge_recovery(const RecoverMarks& marks, std::span<const float> weights,
                              const std::vector<std::vector<uint64_t>>& steps) {
  MILLRACE_CHECK(weights.size() == marks.n && steps.size() <= marks.serials, weights.size(), steps.size());
  RecoverVerdict verdict;
  for (uint32_t serial = 0; serial < steps.size(); ++serial) {
    for (uint32_t push = 0; push < steps[serial].size(); ++push) {
      bool missing = false;
      bool twice = false;
      for (size_t part = 0; part < marks.parts.size(); ++part) {
        const uint32_t times = marks.counted(weights, part, serial, push);
        missing = missing || times == 0;
        twice = twice || times > 1;
      }
      verdict.steps_lost += missing ? 1 : 0;
      verdict.double_counted += twice ? 1 : 0;
    }
  }
  for (size_t part = 0; part < marks.parts.size(); ++part) {
    const std::vector<float> expected = expected_weights(marks, weights, part, steps);
    for (size_t at = 0; at < expected.size(); ++at)
      verdict.wrong_weights += weights[marks.parts[part].first + at] == expected[at] ? 0 : 1;
  }
  return verdict;
}

}  // namespace millrace::bench

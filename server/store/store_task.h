#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kernels/optimize/optimize.h"
#include "protocol/messages/messages.h"
#include "server/aggregation/tasks.h"
#include "server/base/actions.h"

/// The operations on the arrays of a part of the store, as values.
namespace millrace::server {

/// A part's weights and the optimizer's state. One operation at a time has them (job_store.h).
struct StoreArrays {
  std::vector<float> weights;
  std::array<std::vector<float>, kOptimizerStatesMax> states;  ///< those that the optimizer has, of as many values
  uint64_t steps = 0;  ///< they have been through: of this job, and of those that it began from

  bool operator==(const StoreArrays&) const = default;
};

/// The position of a part of the store on its log.
struct StorePosition {
  uint64_t n = 0;             ///< steps applied
  protocol::Summary summary;  ///< as of n; its digest identifies the steps

  bool operator==(const StorePosition&) const = default;
};

/// One operation on the arrays of a part, which it owns until it is handed back. It carries its origin (job, part,
/// token).
class StoreTask : public Task {
 public:
  /// Arrays of zeros.
  struct Fill {
    uint64_t dimension = 0;
  };
  /// A run of the first weights.
  struct Place {
    uint64_t offset = 0;
    uint64_t payload_hash = 0;
    SharedBytes values;
  };
  /// A decided step.
  struct Apply {
    SharedBytes payload;  ///< the update's container
    double denominator = 1;
  };
  /// Of a pull; `indices` or the range.
  struct Read {
    uint64_t offset = 0;
    uint64_t count = 0;
    SharedBytes indices;
    uint32_t run = 1;  ///< entries from each index on; in all at most kPullValuesMax
  };
  /// The record of a save.
  struct Copy {
    StorePosition position;
    uint64_t previous_hash = 0;  ///< of the record before
  };
  using Work = std::variant<Fill, Place, Apply, Read, Copy>;

  struct Input {
    uint64_t job = 0;
    uint32_t part = 0;
    uint64_t token = 0;
    OptimizerSpec optimizer;
    std::shared_ptr<StoreArrays> arrays;
    Work work;
  };
  explicit StoreTask(Input input) : input_(std::move(input)) {}

  Kind kind() const override { return Kind::kStore; }
  uint64_t job() const override { return input_.job; }
  void run() override;
  uint64_t cost_ns() const override;
  TaskRound round() const override { return {.part = input_.part}; }

  const Input& input() const { return input_; }
  /// Returns the values (Read), the record (Copy), or nothing (other operations).
  ///
  /// Errors   of Place: malformed (hash, a run that does not lie in the part), non_finite. Of Read: invalid_argument
  ///          (indices not increasing, or behind the part). Of Apply: as read_shared_container() and optimize(); the
  ///          arrays are not valid then.
  const Result<SharedBytes>& result() const { return result_; }
  /// Returns XXH3-64 of the values (Read); 0 of none.
  uint64_t hash() const { return hash_; }

 private:
  Input input_;
  Result<SharedBytes> result_ = fail(ErrorCode::kLimitExceeded, kNotRun);
  uint64_t hash_ = 0;
};

}  // namespace millrace::server

#pragma once

#include <memory>

#include "kernels/codec/history/index_history.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"

namespace millrace::server {

/// Holds the indices that a part's updates have changed, of jobs with `history`. Other threads read contributions
/// against it, while the part may continue. Empty for other jobs, and for parts that are too large for one.
///
/// Threads  one; what view() handed out does not change.
class PartHistory {
 public:
  PartHistory(const protocol::JobSpec& spec, uint64_t dimension);

  /// Returns the present history; null: there is none.
  std::shared_ptr<const IndexHistory> view() const { return history_; }
  /// Adds the indices that the next step's update changes.
  void advance(IndexSpan changed);
  /// Starts again after missed steps: the next update is that of step `position`.
  void restart(uint64_t position);

 private:
  std::shared_ptr<IndexHistory> history_;
};

/// Returns the memory of the histories of the shard's parts. 0: the job has none.
uint64_t history_bytes(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t shard);

}  // namespace millrace::server

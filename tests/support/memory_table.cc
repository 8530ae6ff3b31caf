#include "tests/support/memory_table.h"

#include <initializer_list>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/table/table_rules.h"

namespace millrace::testing {

using protocol::JobRecord;
using protocol::ShardEntry;

/// The content of a table. Its leases are of its processes.
struct MemoryTableContent {
  std::vector<ShardEntry> shards;
  std::map<uint64_t, JobRecord> jobs;
  uint64_t last_job = 0;
  uint64_t changes = 0;
  uint64_t identity = 1;
  std::map<uint32_t, protocol::DrainNote> drains;  ///< by shard
};

struct MemoryTableState : MemoryTableContent {
  std::mutex mutex;
  uint64_t identities = 1;  ///< that were given
  struct Lease {
    const void* holder = nullptr;  ///< a table object
    protocol::ProcessNote process;
  };
  std::map<uint32_t, Lease> leases;  ///< by shard
  std::map<uint32_t, Lease> leaving;
  std::map<const void*, protocol::ProcessNote> spares;
};

namespace {

class MemoryTable : public protocol::MembershipTable {
 public:
  explicit MemoryTable(std::shared_ptr<MemoryTableState> state) : state_(std::move(state)) {
    const std::lock_guard lock(state_->mutex);
    identity_ = state_->identity;
  }
  ~MemoryTable() override {
    const std::lock_guard lock(state_->mutex);
    give_back({&state_->leases, &state_->leaving});
  }

  Result<uint64_t> start_shard(uint32_t shard, uint32_t shard_count, std::string_view address,
                               std::string_view datagrams) override {
    const std::lock_guard lock(state_->mutex);
    if (Status checked = protocol::check_start_shard(shard, shard_count, address, datagrams); !checked)
      return std::unexpected(checked.error());
    if (Status same = check_table(); !same) return std::unexpected(same.error());
    if (state_->shards.empty()) state_->shards.resize(shard_count);
    if (state_->shards.size() != shard_count)
      return std::unexpected(protocol::shard_count_error(state_->shards.size(), shard_count));
    ShardEntry& entry = state_->shards[shard];
    entry.address = address;
    entry.datagrams = datagrams;
    ++state_->changes;
    return ++entry.incarnation;
  }

  Result<uint64_t> take_over_shard(uint32_t shard, uint64_t expected, std::string_view address,
                                   std::string_view datagrams) override {
    const std::lock_guard lock(state_->mutex);
    const auto count = static_cast<uint32_t>(state_->shards.size());
    if (Status checked = protocol::check_start_shard(shard, count, address, datagrams); !checked)
      return std::unexpected(checked.error());
    if (Status same = check_table(); !same) return std::unexpected(same.error());
    ShardEntry& entry = state_->shards[shard];
    if (entry.incarnation != expected) return 0;
    entry.address = address;
    entry.datagrams = datagrams;
    ++state_->changes;
    return ++entry.incarnation;
  }

  Status hold_lease(uint32_t shard, uint64_t) override {
    const std::lock_guard lock(state_->mutex);
    give_back({&state_->leaving});
    state_->leases.try_emplace(shard, MemoryTableState::Lease{this, note_});
    return {};
  }

  Status hold_spare_lease() override {
    const std::lock_guard lock(state_->mutex);
    if (state_->spares.contains(this)) return {};
    if (state_->spares.size() >= protocol::kSparesMax) return fail(ErrorCode::kLimitExceeded, "too many spares");
    give_back({&state_->leases, &state_->leaving});
    state_->spares.try_emplace(this, note_);
    return {};
  }

  Status hold_leaving_lease(uint32_t shard, uint64_t) override {
    const std::lock_guard lock(state_->mutex);
    give_back({&state_->leases});
    state_->leaving.try_emplace(shard, MemoryTableState::Lease{this, note_});
    return {};
  }

  Result<protocol::ClusterView> read_cluster() override {
    const std::lock_guard lock(state_->mutex);
    protocol::ClusterView view;
    for (uint32_t shard = 0; shard < state_->shards.size(); ++shard) {
      protocol::ClusterView::Shard& seen = view.shards.emplace_back();
      seen.entry = state_->shards[shard];
      seen.drain = drain_of(shard);
      const auto lease = state_->leases.find(shard);
      seen.held = lease != state_->leases.end();
      if (seen.held) seen.process = lease->second.process;
      const auto leaving = state_->leaving.find(shard);
      seen.leaving = leaving != state_->leaving.end();
      if (seen.leaving && !seen.held) seen.process = leaving->second.process;
    }
    for (const auto& [holder, process] : state_->spares) view.spares.push_back(process);
    return view;
  }

  Result<bool> set_drain(uint32_t shard, uint64_t incarnation,
                         const std::optional<protocol::DrainNote>& note) override {
    const std::lock_guard lock(state_->mutex);
    if (Status same = check_table(); !same) return std::unexpected(same.error());
    if (shard >= state_->shards.size() || state_->shards[shard].incarnation != incarnation) return false;
    state_->drains.erase(shard);
    if (note) state_->drains.emplace(shard, *note);
    ++state_->changes;
    return true;
  }

  Result<std::optional<protocol::DrainNote>> read_drain(uint32_t shard) override {
    const std::lock_guard lock(state_->mutex);
    return drain_of(shard);
  }

  Result<std::vector<ShardEntry>> shard_map() override {
    const std::lock_guard lock(state_->mutex);
    return state_->shards;
  }

  Result<std::optional<JobRecord>> read_job(std::string_view name) override {
    const std::lock_guard lock(state_->mutex);
    return find_open(name);
  }

  Result<std::optional<JobRecord>> read_job(uint64_t job) override {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->jobs.find(job);
    return found == state_->jobs.end() ? std::nullopt : std::optional(found->second);
  }

  Result<std::vector<JobRecord>> open_jobs() override {
    const std::lock_guard lock(state_->mutex);
    std::vector<JobRecord> jobs;
    for (const auto& [number, record] : state_->jobs) {
      if (record.membership.finished) continue;
      jobs.push_back(record);
      jobs.back().spec.clear();
    }
    return jobs;
  }

  Result<bool> remove_cluster() override {
    const std::lock_guard lock(state_->mutex);
    if (Status same = check_table(); !same) return std::unexpected(same.error());
    if (!state_->leases.empty() || !state_->leaving.empty() || !state_->spares.empty()) return false;
    identity_ = state_->identity = ++state_->identities;
    state_->shards.clear();
    state_->jobs.clear();
    state_->drains.clear();
    ++state_->changes;
    return true;
  }

  Result<JobRecord> create_job(std::string_view name, ByteSpan spec, protocol::Path path) override {
    const std::lock_guard lock(state_->mutex);
    if (Status checked = protocol::check_create_job(name, spec); !checked) return std::unexpected(checked.error());
    if (Status same = check_table(); !same) return std::unexpected(same.error());
    if (std::optional<JobRecord> open = find_open(name)) return *open;
    JobRecord record = protocol::new_job_record(name, spec, path, ++state_->last_job, state_->shards);
    state_->jobs.emplace(record.membership.job, record);
    std::erase_if(state_->jobs, [&](const auto& job) {
      return job.second.membership.finished && job.first + protocol::kFinishedJobsKept < record.membership.job;
    });
    ++state_->changes;
    return record;
  }

  Result<bool> compare_and_swap(uint64_t expected_epoch, const JobRecord& next) override {
    MILLRACE_CHECK(next.membership.epoch == expected_epoch + 1, next.membership.epoch, expected_epoch);
    const std::lock_guard lock(state_->mutex);
    if (Status same = check_table(); !same) return std::unexpected(same.error());
    const auto found = state_->jobs.find(next.membership.job);
    if (found == state_->jobs.end()) return std::unexpected(protocol::unknown_job_error(next.membership.job));
    if (found->second.membership.epoch != expected_epoch) return false;
    JobRecord copy = next;  // a copy that breaks off for want of memory changes nothing
    found->second = std::move(copy);
    ++state_->changes;
    return true;
  }

  Result<uint64_t> change_counter() override {
    const std::lock_guard lock(state_->mutex);
    if (Status same = check_table(); !same) return std::unexpected(same.error());
    return state_->changes;
  }

 private:
  Status check_table() {
    if (state_->identity != identity_) return fail(ErrorCode::kConflict, std::string(protocol::kAnotherTable));
    if (state_->changes < changes_) return fail(ErrorCode::kStale, std::string(protocol::kOlderTable));
    changes_ = state_->changes;
    return {};
  }

  void give_back(std::initializer_list<std::map<uint32_t, MemoryTableState::Lease>*> all) {
    for (auto* leases : all) std::erase_if(*leases, [this](const auto& lease) { return lease.second.holder == this; });
    state_->spares.erase(this);
  }

  std::optional<protocol::DrainNote> drain_of(uint32_t shard) const {
    const auto found = state_->drains.find(shard);
    const bool of_last_start = found != state_->drains.end() && shard < state_->shards.size() &&
                               state_->shards[shard].incarnation == found->second.incarnation;
    return of_last_start ? std::optional(found->second) : std::nullopt;
  }

  std::optional<JobRecord> find_open(std::string_view name) const {
    for (const auto& [number, record] : state_->jobs) {
      if (!record.membership.finished && record.name == name) return record;
    }
    return std::nullopt;
  }

  std::shared_ptr<MemoryTableState> state_;
  uint64_t identity_ = 0;
  uint64_t changes_ = 0;  ///< the largest counter that was read
};

}  // namespace

void end_leases(MemoryTableState& state) {
  const std::lock_guard lock(state.mutex);
  state.leases.clear();
  state.leaving.clear();
  state.spares.clear();
}

std::shared_ptr<MemoryTableState> make_memory_table_state() { return std::make_shared<MemoryTableState>(); }

std::unique_ptr<protocol::MembershipTable> open_memory_table(std::shared_ptr<MemoryTableState> state) {
  return std::make_unique<MemoryTable>(std::move(state));
}

void lose_memory_table(MemoryTableState& state) {
  const std::lock_guard lock(state.mutex);
  static_cast<MemoryTableContent&>(state) = {};
  state.identity = ++state.identities;
}

std::shared_ptr<const MemoryTableState> copy_of(const MemoryTableState& state) {
  auto copy = std::make_shared<MemoryTableState>();
  static_cast<MemoryTableContent&>(*copy) = state;
  return copy;
}

void go_back(MemoryTableState& state, const MemoryTableState& copy) {
  const std::lock_guard lock(state.mutex);
  static_cast<MemoryTableContent&>(state) = copy;
}

}  // namespace millrace::testing

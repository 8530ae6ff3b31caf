#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/table/membership_table.h"

namespace millrace::testing {

/// A table that can be made to fail for this object. Others can read and write it.
class FailingTable : public protocol::MembershipTable {
 public:
  enum class Mode : uint8_t {
    kWorks,
    kWritesFail,   ///< writes change nothing; reads continue, as beside a writer of an SQLite file, or on a full disk
    kUnavailable,  ///< every call fails, as of an etcd without a leader
    kMaybe,        ///< writes report a time-out, and take effect, now or later, or do not, as `draw_effect` says
  };
  /// The effect of a write in mode kMaybe.
  enum class Effect : uint8_t { kNone, kNow, kLater };

  explicit FailingTable(std::shared_ptr<protocol::MembershipTable> table) : table_(std::move(table)) {}

  using MembershipTable::create_job;
  using MembershipTable::start_shard;
  Result<uint64_t> start_shard(uint32_t shard, uint32_t shard_count, std::string_view address,
                               std::string_view datagrams) override {
    return table_->start_shard(shard, shard_count, address, datagrams);
  }
  Result<uint64_t> take_over_shard(uint32_t shard, uint64_t expected, std::string_view address,
                                   std::string_view datagrams) override {
    if (!take_over_error) return table_->take_over_shard(shard, expected, address, datagrams);
    if (take_over_error->code == ErrorCode::kTimeout)
      (void)table_->take_over_shard(shard, expected, address, datagrams);
    return std::unexpected(*std::exchange(take_over_error, std::nullopt));
  }
  Status hold_lease(uint32_t shard, uint64_t incarnation) override { return table_->hold_lease(shard, incarnation); }
  Status hold_spare_lease() override {
    if (!spare_lease_error) return table_->hold_spare_lease();
    return std::unexpected(*std::exchange(spare_lease_error, std::nullopt));
  }
  Status hold_leaving_lease(uint32_t shard, uint64_t incarnation) override {
    return table_->hold_leaving_lease(shard, incarnation);
  }
  Result<protocol::ClusterView> read_cluster() override {
    if (!can_read()) return no_answer();
    if (next_view) return *std::exchange(next_view, std::nullopt);
    return table_->read_cluster();
  }
  Result<bool> set_drain(uint32_t shard, uint64_t incarnation,
                         const std::optional<protocol::DrainNote>& note) override {
    if (!can_write()) return no_answer();
    if (mode != Mode::kMaybe) return table_->set_drain(shard, incarnation, note);
    carry_out([table = table_, shard, incarnation, note] { (void)table->set_drain(shard, incarnation, note); });
    return no_answer();
  }
  Result<std::optional<protocol::DrainNote>> read_drain(uint32_t shard) override {
    if (!can_read()) return no_answer();
    return table_->read_drain(shard);
  }
  Result<std::vector<protocol::JobRecord>> open_jobs() override { return table_->open_jobs(); }
  Result<bool> remove_cluster() override { return table_->remove_cluster(); }
  Result<std::vector<protocol::ShardEntry>> shard_map() override {
    if (!can_read() || shard_map_fails) return no_answer();
    return table_->shard_map();
  }
  Result<std::optional<protocol::JobRecord>> read_job(std::string_view name) override {
    if (!can_read()) return no_answer();
    return table_->read_job(name);
  }
  Result<std::optional<protocol::JobRecord>> read_job(uint64_t job) override {
    if (!can_read()) return no_answer();
    if (const auto change = std::exchange(before_read_by_number, nullptr)) change();
    return table_->read_job(job);
  }
  Result<protocol::JobRecord> create_job(std::string_view name, ByteSpan spec, protocol::Path path) override {
    if (!can_write()) return no_answer();
    if (mode != Mode::kMaybe) return table_->create_job(name, spec, path);
    carry_out([table = table_, name = std::string(name), spec = ByteBuffer(spec.begin(), spec.end()), path] {
      (void)table->create_job(name, spec, path);
    });
    return no_answer();
  }
  Result<bool> compare_and_swap(uint64_t expected_epoch, const protocol::JobRecord& next) override {
    if (!can_write()) return no_answer();
    if (mode != Mode::kMaybe) return table_->compare_and_swap(expected_epoch, next);
    carry_out([table = table_, expected_epoch, next] { (void)table->compare_and_swap(expected_epoch, next); });
    return no_answer();
  }
  Result<uint64_t> change_counter() override {
    if (!can_read()) return no_answer();
    return table_->change_counter();
  }
  Result<uint64_t> polled_change_counter() override {
    --calls;  // it does not wait
    return change_counter();
  }

  Mode mode = Mode::kWorks;
  bool shard_map_fails = false;
  std::optional<protocol::ClusterView> next_view;  ///< of the next read, in place of the table's
  std::optional<Error> take_over_error;            ///< of the next take-over. One that reports timeout takes effect
  std::optional<Error> spare_lease_error;          ///< of the next hold_spare_lease(), which changes nothing
  std::function<Effect()> draw_effect;
  std::function<void(std::function<void()>)> later;  ///< runs a write that takes effect after its call is over
  std::function<void()> before_read_by_number;       ///< another process's change, before the next read of a job
  int64_t calls = 0;                                 ///< that wait for the table's answer

 private:
  static std::unexpected<Error> no_answer() { return fail(ErrorCode::kTimeout, "the table does not answer"); }
  bool can_read() {
    ++calls;
    return mode != Mode::kUnavailable;
  }
  bool can_write() { return can_read() && mode != Mode::kWritesFail; }
  void carry_out(std::function<void()> write) {
    switch (draw_effect()) {
      case Effect::kNone: return;
      case Effect::kNow: return write();
      case Effect::kLater: return later(std::move(write));
    }
  }

  std::shared_ptr<protocol::MembershipTable> table_;
};

}  // namespace millrace::testing

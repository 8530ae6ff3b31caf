#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/table/membership_table.h"

namespace millrace::testing {

/// A table whose writes through this object can be made to fail, as behind another process's lock or on a full disk.
/// Others can read and write it. Reads continue, as they do beside a writer of an SQLite file.
class FailingTable : public protocol::MembershipTable {
 public:
  explicit FailingTable(std::unique_ptr<protocol::MembershipTable> table) : table_(std::move(table)) {}

  using MembershipTable::create_job;
  using MembershipTable::start_shard;
  Result<uint64_t> start_shard(uint32_t shard, uint32_t shard_count, std::string_view address,
                               std::string_view datagrams) override {
    return table_->start_shard(shard, shard_count, address, datagrams);
  }
  Result<std::vector<protocol::ShardEntry>> shard_map() override { return table_->shard_map(); }
  Result<std::optional<protocol::JobRecord>> read_job(std::string_view name) override { return table_->read_job(name); }
  Result<std::optional<protocol::JobRecord>> read_job(uint64_t job) override { return table_->read_job(job); }
  Result<protocol::JobRecord> create_job(std::string_view name, ByteSpan spec, protocol::Path path) override {
    if (writes_fail) return fail(ErrorCode::kTimeout, "the table is locked");
    return table_->create_job(name, spec, path);
  }
  Result<bool> compare_and_swap(uint64_t expected_epoch, const protocol::JobRecord& next) override {
    if (writes_fail) return fail(ErrorCode::kTimeout, "the table is locked");
    return table_->compare_and_swap(expected_epoch, next);
  }
  Result<uint64_t> change_counter() override { return table_->change_counter(); }

  bool writes_fail = false;

 private:
  std::unique_ptr<protocol::MembershipTable> table_;
};

}  // namespace millrace::testing

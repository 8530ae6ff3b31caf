#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::server {

/// Bytes in use, of a shard, of a job, of a job's kept updates: each account also counts in its parent. Must outlive
/// its charges.
class MemoryAccount {
 public:
  /// limit_bytes  largest use. The caller checks it before a charge; the account does not enforce it.
  explicit MemoryAccount(MemoryAccount* parent = nullptr, uint64_t limit_bytes = std::numeric_limits<uint64_t>::max())
      : parent_(parent), limit_(limit_bytes) {}
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  uint64_t used_bytes() const { return used_; }
  uint64_t limit_bytes() const { return limit_; }
  void add(uint64_t bytes) {
    for (MemoryAccount* at = this; at; at = at->parent_) at->used_ += bytes;
  }
  void subtract(uint64_t bytes) {
    for (MemoryAccount* at = this; at; at = at->parent_) {
      MILLRACE_CHECK(at->used_ >= bytes, at->used_, bytes);
      at->used_ -= bytes;
    }
  }

 private:
  MemoryAccount* parent_;
  uint64_t limit_;
  uint64_t used_ = 0;
};

/// Charges bytes to an account until its end. Move-only.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(MemoryAccount& account, uint64_t bytes) : account_(&account), bytes_(bytes) { account.add(bytes); }
  MemoryCharge(MemoryCharge&& other) noexcept
      : account_(std::exchange(other.account_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    if (this == &other) return *this;
    release();
    account_ = std::exchange(other.account_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~MemoryCharge() { release(); }

  uint64_t bytes() const { return bytes_; }

 private:
  void release() {
    if (account_) account_->subtract(bytes_);
    account_ = nullptr;
    bytes_ = 0;
  }

  MemoryAccount* account_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace millrace::server

#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/clock.h"
#include "kernels/base/log_line.h"

namespace millrace::server {

/// The process's log: lines on stderr with the time of day. Peers cause lines, so there are at most kLinesPerSecond of
/// them, and as many of errors: warnings never displace an error. The log reports how many were left out.
///
/// Threads  one at a time.
class ProcessLog {
 public:
  static constexpr uint32_t kLinesPerSecond = 100;

  ProcessLog(uint32_t shard, Severity least) : shard_(shard), least_(least) {}
  void write(Severity severity, std::string_view text, TimeNs now);

 private:
  void print(Severity severity, std::string_view text) const;

  uint32_t shard_;
  Severity least_;
  TimeNs second_begun_ = 0;
  uint32_t lines_ = 0;   ///< of this second, errors apart
  uint32_t errors_ = 0;  ///< of this second
  uint64_t left_out_ = 0;
};

}  // namespace millrace::server

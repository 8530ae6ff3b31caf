#pragma once

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "server/base/actions.h"
#include "server/store/save_format.h"

namespace millrace::testing {

/// Holds the saves of a fuzzed shard. Carries out requests in order when the fuzzer's bytes select it. Outlives the
/// shard's processes.
class FuzzDisk {
 public:
  void ask(std::vector<server::StoreRequest>& requests) {
    std::ranges::move(requests, std::back_inserter(asked_));
    requests.clear();
  }
  bool idle() const { return asked_.empty(); }

  /// The oldest request, which fails. REQUIRES, of both: !idle().
  server::StoreRequest pass_over() {
    server::StoreRequest request = std::move(asked_.front());
    asked_.pop_front();
    return request;
  }
  /// The oldest request, done.
  server::StoreRequest carry_out() {
    using What = server::StoreRequest::What;
    server::StoreRequest request = pass_over();
    if (request.what == What::kLoad) return request;
    if (request.what == What::kGiveUp) {
      unfinished_.erase(request.name);
      return request;
    }
    ByteBuffer& file = unfinished_[request.name];
    if (request.what == What::kBegin) file.clear();
    MILLRACE_CHECK(request.what == What::kBegin || !file.empty(), request.name);  // it begins with a header
    file.insert(file.end(), request.bytes.bytes.begin(), request.bytes.bytes.end());
    if (request.what == What::kEnd) saves_[request.name] = std::exchange(file, {});
    return request;
  }
  /// Drops unfinished requests: the next process does not continue them.
  void lose_process() {
    asked_.clear();
    unfinished_.clear();
  }

  Result<server::StoreFile> load(const std::string& name) const {
    const auto at = saves_.find(name);
    if (at == saves_.end()) return fail(ErrorCode::kIo, "no save");
    ByteSpan left = at->second;
    auto file = server::read_store_file(left.size(), [&left](std::span<uint8_t> out) -> Status {
      if (out.size() > left.size()) return fail(ErrorCode::kMalformed, "too short");
      std::ranges::copy(left.first(out.size()), out.begin());
      left = left.subspan(out.size());
      return {};
    });
    MILLRACE_CHECK(file.has_value(), name);  // a completed save is readable
    return file;
  }

 private:
  std::deque<server::StoreRequest> asked_;
  std::map<std::string, ByteBuffer> unfinished_;
  std::map<std::string, ByteBuffer> saves_;
};

}  // namespace millrace::testing

#include "tests/sim/sim_disk.h"

#include <algorithm>

namespace millrace::testing {

void SimDisk::write(const server::StoreRequest& request) {
  using What = server::StoreRequest::What;
  if (request.what == What::kGiveUp) {
    unfinished_.erase(request.name);
    return;
  }
  ByteBuffer& file = unfinished_[request.name];
  if (request.what == What::kBegin) file.clear();
  file.insert(file.end(), request.bytes.bytes.begin(), request.bytes.bytes.end());
  if (request.what != What::kEnd) return;
  saves_[request.name] = std::move(file);
  unfinished_.erase(request.name);
}

Result<server::StoreFile> SimDisk::load(const std::string& name) const {
  const auto at = saves_.find(name);
  if (at == saves_.end()) return fail(ErrorCode::kIo, "no save of '" + name + "'");
  ByteSpan left = at->second;
  return server::read_store_file(left.size(), [&left](std::span<uint8_t> out) -> Status {
    if (out.size() > left.size()) return fail(ErrorCode::kMalformed, "the file is too short");
    std::ranges::copy(left.first(out.size()), out.begin());
    left = left.subspan(out.size());
    return {};
  });
}

}  // namespace millrace::testing

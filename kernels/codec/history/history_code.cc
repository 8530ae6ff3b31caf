#include "kernels/codec/history/history_code.h"

#include <limits>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec_list.h"
#include "kernels/codec/history/history_ranks.h"

namespace millrace {

void history_encode(const IndexHistory& history, IndexSpan indices, ByteBuffer& out) {
  MILLRACE_CHECK(indices.empty() || indices.back() < history.dimension(), indices.back(), history.dimension());
  ByteWriter(out).put(history.name());
  IndexBuffer ranks(indices.size());
  history_ranks(history.view(), indices, ranks.data());
  const Status coded = adaptive_index_codec().encode(ranks, history.dimension(), {}, out, nullptr);
  MILLRACE_CHECK(coded.has_value());
}

Status history_decode(ByteSpan bytes, const IndexHistory& history, uint64_t count, IndexBuffer& indices) {
  ByteReader reader(bytes);
  const std::optional<uint64_t> name = reader.get<uint64_t>();
  if (!name) return fail(ErrorCode::kMalformed, "history code: shorter than the history's name");
  if (!history.complete()) return fail(ErrorCode::kStale, "history code: this side has not seen enough updates");
  if (*name != history.name()) return fail(ErrorCode::kStale, "history code: against another history");
  IndexBuffer ranks;
  if (Status decoded =
          adaptive_index_codec().decode(bytes.subspan(kHistoryNameBytes), history.dimension(), count, ranks);
      !decoded) {
    return decoded;
  }
  ranks.push_back(std::numeric_limits<uint32_t>::max());
  indices.resize(count + kHistorySlack);
  history_indices(history.view(), ranks.data(), count, indices.data());
  indices.resize(count);
  return {};
}

}  // namespace millrace

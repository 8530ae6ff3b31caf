#include "server/part/part_history.h"

#include "protocol/container/history_payload.h"

namespace millrace::server {

PartHistory::PartHistory(const protocol::JobSpec& spec, uint64_t dimension) {
  if (keeps_history(spec, dimension)) history_ = std::make_shared<IndexHistory>(dimension);
}

void PartHistory::advance(IndexSpan changed) {
  if (!history_) return;
  // In modes that do not wait for all members, a contribution may still be read against it.
  if (history_.use_count() > 1) history_ = std::make_shared<IndexHistory>(*history_);
  history_->advance(changed);
}

void PartHistory::restart(uint64_t position) {
  if (history_) history_ = std::make_shared<IndexHistory>(history_->dimension(), position);
}

uint64_t history_bytes(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t shard) {
  uint64_t bytes = 0;
  for (const protocol::PartLayout& part : layout.parts) {
    const uint64_t dimension = part.end - part.begin;
    if (part.shard != shard || !keeps_history(spec, dimension)) continue;
    const uint64_t blocks = dimension / kHistoryBlock + 1;
    bytes +=
        blocks * (kHistoryBlock + sizeof(HistoryCounts)) + (blocks / kHistoryGroupBlocks + 1) * sizeof(HistoryGroup);
  }
  return bytes;
}

}  // namespace millrace::server

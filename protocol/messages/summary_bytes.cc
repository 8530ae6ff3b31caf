#include "protocol/messages/summary_bytes.h"

#include "protocol/base/limits.h"
#include "protocol/messages/summary_check.h"

namespace millrace::protocol {
namespace {

constexpr size_t kPairBytes = 2 * sizeof(uint64_t);
constexpr size_t kEntryBytesMin = 2 * sizeof(uint32_t) + 6 * sizeof(uint64_t);

SummaryEntry get_entry(FieldReader& in) {
  SummaryEntry entry;
  in >> entry.worker >> entry.incarnation >> entry.last_step >> entry.counted_mask >> entry.sequence;
  entry.entered = in.finite();
  entry.carried = in.finite();
  entry.lost = in.finite();
  entry.earlier_incarnations.resize(in.count(kPairBytes, kEarlierIncarnationsMax));
  for (auto& [incarnation, last_step] : entry.earlier_incarnations) in >> incarnation >> last_step;
  return entry;
}

}  // namespace

void put_summary(ByteWriter& writer, const Summary& summary) {
  writer.put(static_cast<uint32_t>(summary.workers.size()));
  for (const SummaryEntry& entry : summary.workers) {
    writer.put(entry.worker);
    writer.put(entry.incarnation);
    writer.put(entry.last_step);
    writer.put(entry.counted_mask);
    writer.put(entry.sequence);
    writer.put(entry.entered);
    writer.put(entry.carried);
    writer.put(entry.lost);
    writer.put(static_cast<uint32_t>(entry.earlier_incarnations.size()));
    for (const auto& [incarnation, last_step] : entry.earlier_incarnations) {
      writer.put(incarnation);
      writer.put(last_step);
    }
  }
  writer.put(static_cast<uint32_t>(summary.epochs.size()));
  for (const auto& [epoch, first_step] : summary.epochs) {
    writer.put(epoch);
    writer.put(first_step);
  }
  writer.put(summary.threshold);
  writer.put(summary.log_digest);
}

Summary get_summary(FieldReader& in) {
  Summary summary;
  summary.workers.resize(in.count(kEntryBytesMin, kWorkersMax));
  for (size_t at = 0; at < summary.workers.size() && in.good(); ++at) {
    summary.workers[at] = get_entry(in);
  }
  summary.epochs.resize(in.count(kPairBytes, kSummaryEpochsMax));
  for (auto& [epoch, first_step] : summary.epochs) in >> epoch >> first_step;
  summary.threshold = in.finite();
  in.expect(summary.threshold >= 0);
  summary.log_digest = in.get<uint64_t>();
  in.expect(disorder_in(summary).empty());
  return summary;
}

}  // namespace millrace::protocol

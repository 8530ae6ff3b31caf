#include "protocol/table/job_record.h"

#include "kernels/base/hash.h"
#include "protocol/base/field_reader.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/messages/log_branch.h"

namespace millrace::protocol {
namespace {

constexpr uint16_t kRecordVersion = 5;  ///< raised with every change of the bytes: protocol/wire/versions.md
constexpr size_t kChecksumBytes = sizeof(uint64_t);

void put_view(const JobView& view, ByteWriter& writer) {
  writer.put(view.job);
  writer.put(view.epoch);
  writer.put(static_cast<uint8_t>(view.started));
  writer.put(static_cast<uint8_t>(view.finished));
  writer.put(static_cast<uint32_t>(view.members.size()));
  for (const Member& member : view.members) {
    writer.put(member.worker);
    writer.put(member.life);
    writer.put(member.nonce);
    writer.put(member.state);
  }
  writer.put(static_cast<uint32_t>(view.shards.size()));
  for (const ShardEntry& shard : view.shards) {
    put_text(writer, shard.address);
    writer.put(shard.life);
    put_text(writer, shard.datagrams);
  }
  writer.put(view.lineages);
  writer.put(static_cast<uint32_t>(view.activations.size()));
  for (const Activation& each : view.activations) {
    writer.put(each.shard);
    writer.put(each.lineage);
    writer.put(each.parent);
  }
  writer.put(view.cut);
  writer.put(view.cut_worker);
  writer.put(view.left);
  writer.put(view.path);
}

bool get_member_state(FieldReader& reader, MemberState& state) {
  state = static_cast<MemberState>(reader.get<uint8_t>());
  return state == MemberState::kSynced || state == MemberState::kJoining;
}

bool get_view(FieldReader& reader, JobView& view) {
  view.job = reader.get<uint64_t>();
  view.epoch = reader.get<uint64_t>();
  view.started = reader.flag();
  view.finished = reader.flag();
  view.members.resize(reader.count(21, kWorkersMax));
  for (Member& member : view.members) {
    member.worker = reader.get<uint32_t>();
    member.life = reader.get<uint64_t>();
    member.nonce = reader.get<uint64_t>();
    if (!get_member_state(reader, member.state)) return false;
  }
  view.shards.resize(reader.count(12, kShardsMax));
  for (ShardEntry& shard : view.shards) {
    shard.address = reader.text(kAddressBytesMax);
    shard.life = reader.get<uint64_t>();
    shard.datagrams = reader.text(kAddressBytesMax);
  }
  view.lineages = reader.get<uint64_t>();
  view.activations.resize(reader.count(20, kActivationsMax));
  for (Activation& each : view.activations) {
    each.shard = reader.get<uint32_t>();
    each.lineage = reader.get<uint64_t>();
    each.parent = reader.get<uint64_t>();
  }
  view.cut = reader.get<uint64_t>();
  view.cut_worker = reader.get<uint32_t>();
  view.left = reader.get<uint32_t>();
  view.path = static_cast<Path>(reader.get<uint8_t>());
  return reader.good() && (view.path == Path::kServer || view.path == Path::kSwitch) && view.cut <= view.epoch &&
         activations_make_sense(view);
}

}  // namespace

ByteBuffer encode_job_record(const JobRecord& record) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(kRecordVersion);
  put_text(writer, record.name);
  put_view(record.view, writer);
  writer.put(static_cast<uint32_t>(record.spec.size()));
  writer.put_bytes(record.spec);
  writer.put(static_cast<uint32_t>(record.last_lives.size()));
  for (const auto& [worker, life] : record.last_lives) {
    writer.put(worker);
    writer.put(life);
  }
  writer.put(static_cast<uint8_t>(record.workers_return));
  writer.put(hash64(ByteSpan(bytes)));
  return bytes;
}

Result<JobRecord> decode_job_record(ByteSpan bytes) {
  const auto malformed = [] { return fail(ErrorCode::kMalformed, "membership table: a job's record is damaged"); };
  if (bytes.size() < kChecksumBytes) return malformed();
  const ByteSpan body = bytes.first(bytes.size() - kChecksumBytes);
  if (ByteReader(bytes.last(kChecksumBytes)).get<uint64_t>() != hash64(body)) return malformed();

  FieldReader reader(body);
  if (reader.get<uint16_t>() != kRecordVersion) {
    return fail(ErrorCode::kUnsupported, "membership table: a job's record was written by another version of Millrace");
  }
  JobRecord record;
  record.name = reader.text(kNameBytesMax);
  if (!get_view(reader, record.view)) return malformed();
  const ByteSpan spec = reader.bytes(reader.count(1, kJobSpecBytesMax));
  record.spec.assign(spec.begin(), spec.end());
  record.last_lives.resize(reader.count(12, kWorkersMax));
  for (auto& [worker, life] : record.last_lives) {
    worker = reader.get<uint32_t>();
    life = reader.get<uint64_t>();
  }
  record.workers_return = reader.flag();
  if (!reader.at_end()) return malformed();
  return record;
}

}  // namespace millrace::protocol

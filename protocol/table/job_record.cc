#include "protocol/table/job_record.h"

#include "kernels/base/hash.h"
#include "protocol/base/field_reader.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/messages/log_branch.h"

namespace millrace::protocol {
namespace {

constexpr uint16_t kRecordVersion = 9;  ///< raised with every change of the bytes: protocol/wire/versions.md
constexpr size_t kChecksumBytes = sizeof(uint64_t);

void put_membership(const Membership& membership, ByteWriter& writer) {
  writer.put(membership.job);
  writer.put(membership.epoch);
  writer.put(static_cast<uint8_t>(membership.started));
  writer.put(static_cast<uint8_t>(membership.finished));
  writer.put(static_cast<uint32_t>(membership.members.size()));
  for (const Member& member : membership.members) {
    writer.put(member.worker);
    writer.put(member.incarnation);
    writer.put(member.nonce);
    writer.put(member.state);
  }
  writer.put(static_cast<uint32_t>(membership.shards.size()));
  for (const ShardEntry& shard : membership.shards) {
    put_text(writer, shard.address);
    writer.put(shard.incarnation);
    put_text(writer, shard.datagrams);
  }
  writer.put(membership.branches);
  writer.put(static_cast<uint32_t>(membership.activations.size()));
  for (const Activation& each : membership.activations) {
    writer.put(each.shard);
    writer.put(each.branch);
    writer.put(each.parent);
  }
  writer.put(membership.cut);
  writer.put(membership.cut_worker);
  writer.put(membership.left);
  writer.put(membership.path);
}

bool get_member_state(FieldReader& reader, MemberState& state) {
  state = static_cast<MemberState>(reader.get<uint8_t>());
  return state == MemberState::kSynced || state == MemberState::kJoining;
}

bool get_membership(FieldReader& reader, Membership& membership) {
  membership.job = reader.get<uint64_t>();
  membership.epoch = reader.get<uint64_t>();
  membership.started = reader.flag();
  membership.finished = reader.flag();
  membership.members.resize(reader.count(21, kWorkersMax));
  for (Member& member : membership.members) {
    member.worker = reader.get<uint32_t>();
    member.incarnation = reader.get<uint64_t>();
    member.nonce = reader.get<uint64_t>();
    if (!get_member_state(reader, member.state)) return false;
  }
  membership.shards.resize(reader.count(12, kShardsMax));
  for (ShardEntry& shard : membership.shards) {
    shard.address = reader.text(kAddressBytesMax);
    shard.incarnation = reader.get<uint64_t>();
    shard.datagrams = reader.text(kAddressBytesMax);
  }
  membership.branches = reader.get<uint64_t>();
  membership.activations.resize(reader.count(20, kActivationsMax));
  for (Activation& each : membership.activations) {
    each.shard = reader.get<uint32_t>();
    each.branch = reader.get<uint64_t>();
    each.parent = reader.get<uint64_t>();
  }
  membership.cut = reader.get<uint64_t>();
  membership.cut_worker = reader.get<uint32_t>();
  membership.left = reader.get<uint32_t>();
  membership.path = static_cast<Path>(reader.get<uint8_t>());
  return reader.good() && (membership.path == Path::kServer || membership.path == Path::kSwitch) &&
         membership.cut <= membership.epoch && activations_make_sense(membership);
}

bool get_end_code(FieldReader& reader, ErrorCode& code) {
  const auto number = reader.get<uint16_t>();
  code = static_cast<ErrorCode>(number);
  return number != 0 && error_code_name(code) != error_code_name(ErrorCode{0});
}

}  // namespace

ByteBuffer encode_job_record(const JobRecord& record) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(kRecordVersion);
  put_text(writer, record.name);
  put_membership(record.membership, writer);
  writer.put(static_cast<uint32_t>(record.spec.size()));
  writer.put_bytes(record.spec);
  writer.put(static_cast<uint32_t>(record.last_incarnations.size()));
  for (const auto& [worker, incarnation] : record.last_incarnations) {
    writer.put(worker);
    writer.put(incarnation);
  }
  writer.put(static_cast<uint8_t>(record.workers_rejoin));
  put_text(writer, record.end_reason);
  put_text(writer, record.opened_by);
  writer.put(static_cast<uint16_t>(record.end_code));
  writer.put(static_cast<uint32_t>(record.finished.size()));
  for (const LogReach& reach : record.finished) {
    writer.put(reach.steps);
    writer.put(reach.decided_in);
  }
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
  if (!get_membership(reader, record.membership)) return malformed();
  const ByteSpan spec = reader.bytes(reader.count(1, kJobSpecBytesMax));
  record.spec.assign(spec.begin(), spec.end());
  record.last_incarnations.resize(reader.count(12, kWorkersMax));
  for (auto& [worker, incarnation] : record.last_incarnations) {
    worker = reader.get<uint32_t>();
    incarnation = reader.get<uint64_t>();
  }
  record.workers_rejoin = reader.flag();
  record.end_reason = reader.text(kSentenceBytesMax);
  record.opened_by = reader.text(kNameBytesMax);
  if (!get_end_code(reader, record.end_code)) return malformed();
  record.finished.resize(reader.count(16, kShardsMax));
  for (LogReach& reach : record.finished) {
    reach.steps = reader.get<uint64_t>();
    reach.decided_in = reader.get<uint64_t>();
  }
  if (!reader.at_end()) return malformed();
  return record;
}

}  // namespace millrace::protocol

#include "protocol/table/job_record.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "tests/protocol/document.h"
#include "tests/support/format_versions.h"

namespace millrace::protocol {
namespace {

JobRecord job_record_example() {
  JobRecord record;
  record.name = "train";
  record.membership.job = 3;
  record.membership.epoch = 9;
  record.membership.started = true;
  record.membership.members = {{.worker = 1, .incarnation = 2, .nonce = 3, .state = MemberState::kJoining}};
  record.membership.shards = {{"tcp://a:1", 4}, {"", 0}};
  record.membership.branches = 1;
  record.membership.activations = {{0, 1, 0}};
  record.membership.cut = 1;
  record.membership.cut_worker = 2;
  record.membership.left = 3;
  record.spec = {5, 6};
  record.last_incarnations = {{1, 2}};
  record.workers_rejoin = true;
  record.end_reason = "worker 1 went silent";
  record.opened_by = "worker-1";
  record.end_code = ErrorCode::kTimeout;
  record.finished = {{40, 8}, {}, {39, 9}};
  return record;
}

TEST(JobRecordBytes, GoRoundTrip) {
  const auto decoded = decode_job_record(encode_job_record(job_record_example()));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->name, job_record_example().name);
  EXPECT_EQ(decoded->membership, job_record_example().membership);
  EXPECT_EQ(decoded->spec, job_record_example().spec);
  EXPECT_EQ(decoded->last_incarnations, job_record_example().last_incarnations);
  EXPECT_EQ(decoded->workers_rejoin, job_record_example().workers_rejoin);
  EXPECT_EQ(decoded->end_reason, job_record_example().end_reason);
  EXPECT_EQ(decoded->opened_by, job_record_example().opened_by);
  EXPECT_EQ(decoded->end_code, job_record_example().end_code);
  EXPECT_EQ(decoded->finished, job_record_example().finished);
}

TEST(JobRecordBytes, AreThoseOfTheirVersion) {
  const ByteBuffer bytes = encode_job_record(job_record_example());
  millrace::testing::expect_format_version("job_record", bytes[0] + (uint64_t{bytes[1]} << 8),
                                           millrace::testing::Fingerprint().add(bytes),
                                           "kRecordVersion in protocol/table/job_record.cc");
}

TEST(JobRecordBytes, ARecordOfARunningJobHasNoEnd) {
  JobRecord record = job_record_example();
  record.opened_by.clear();
  record.end_reason.clear();
  record.end_code = JobRecord().end_code;
  record.finished = {};
  const auto decoded = decode_job_record(encode_job_record(record));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->membership, record.membership);
  EXPECT_EQ(decoded->end_reason, "");
  EXPECT_EQ(decoded->opened_by, "");
  EXPECT_EQ(decoded->end_code, ErrorCode::kUnavailable);
  EXPECT_TRUE(decoded->finished.empty());
}

TEST(JobRecordBytes, AnotherVersionIsRefused) {
  const ByteBuffer bytes = encode_job_record(job_record_example());
  for (const int step : {-1, 1}) {
    ByteBuffer other(bytes.begin(), bytes.end() - sizeof(uint64_t));
    other[0] = static_cast<uint8_t>(other[0] + step);
    const uint64_t hash = hash64(ByteSpan(other));
    ByteWriter(other).put(hash);
    const auto decoded = decode_job_record(other);
    ASSERT_FALSE(decoded) << step;
    EXPECT_EQ(decoded.error().code, ErrorCode::kUnsupported);
  }
}

TEST(JobRecordBytes, AnUnknownCodeOfTheEndIsRefused) {
  for (const uint16_t code : std::initializer_list<uint16_t>{0, 1'000}) {
    JobRecord record = job_record_example();
    record.end_code = ErrorCode{code};
    const auto decoded = decode_job_record(encode_job_record(record));
    ASSERT_FALSE(decoded) << code;
    EXPECT_EQ(decoded.error().code, ErrorCode::kMalformed);
  }
}

TEST(JobRecordBytes, EveryTruncationIsRefused) {
  const ByteBuffer bytes = encode_job_record(job_record_example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_job_record(ByteSpan(bytes).first(size))) << size;
  }
}

/// Returns the bytes of a field of that type in protocol/wire/files.md that holds nothing: an empty text, a count of 0.
size_t least_bytes(const std::string& type) {
  if (type.find("XXH3-64") != std::string::npos) return 8;
  const std::map<std::string, size_t> sizes = {{"u8", 1}, {"u16", 2}, {"u32", 4}, {"u64", 8}, {"flag", 1}, {"text", 2}};
  std::istringstream words(type);
  size_t bytes = 0;
  for (std::string word; words >> word;) {
    if (word == "count;" || word == "length,") break;  // the rest is there as often as the count says
    if (word.ends_with(',')) word.pop_back();
    if (const auto size = sizes.find(word); size != sizes.end()) bytes += size->second;
  }
  return bytes;
}

TEST(JobRecordBytes, TheDocumentHasAllFields) {
  size_t bytes = 0;
  bool inside = false;
  for (const std::string& line : document_lines("wire/files.md")) {
    if (line.starts_with("## ")) inside = line == "## Job record";
    if (!inside || !line.starts_with("| ")) continue;
    const size_t type = line.find(" | ") + 3;
    bytes += least_bytes(line.substr(type, line.size() - 2 - type));
  }
  EXPECT_EQ(bytes, encode_job_record(JobRecord{}).size());
}

TEST(JobRecordBytes, EverySingleByteCorruptionIsRefused) {
  const ByteBuffer bytes = encode_job_record(job_record_example());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const uint8_t flip : std::initializer_list<uint8_t>{0x01, 0x80, 0xFF}) {
      ByteBuffer damaged = bytes;
      damaged[at] ^= flip;
      EXPECT_FALSE(decode_job_record(damaged)) << at;
    }
  }
}

}  // namespace
}  // namespace millrace::protocol

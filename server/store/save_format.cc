#include "server/store/save_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "protocol/base/field_reader.h"
#include "protocol/base/text.h"
#include "protocol/messages/summary_bytes.h"

namespace millrace::server {
namespace {

/// The digit is the version: raised with every change of the bytes (protocol/wire/versions.md).
constexpr std::array<uint8_t, 8> kMagic = {'M', 'L', 'R', 'S', 'T', 'O', 'R', '3'};
constexpr uint64_t kFrameBytes = 2 * sizeof(uint64_t);  ///< a record's length and hash

using protocol::FieldReader;

/// Puts length and hash around the body that begins behind the length's place.
StoreRecord framed(ByteBuffer&& record, uint64_t previous_hash) {
  const uint64_t bytes = record.size() - sizeof(uint64_t);
  std::memcpy(record.data(), &bytes, sizeof(bytes));
  const uint64_t hash = hash64(ByteSpan(record).subspan(sizeof(uint64_t)), previous_hash);
  ByteWriter(record).put(hash);
  return {std::move(record), hash};
}

std::vector<float> get_values(FieldReader& in, uint64_t count) {
  const ByteSpan bytes = in.bytes(count * sizeof(float));
  std::vector<float> values(in.good() ? count : 0);
  in.expect(copy_finite(bytes.data(), values));
  return values;
}

std::unexpected<Error> malformed(std::string_view what) {
  return fail(ErrorCode::kMalformed, fmt::format("the save is damaged: {}", what));
}

Result<StoreHeader> read_header(ByteSpan body) {
  FieldReader in(body);
  StoreHeader header;
  header.job = in.get<uint64_t>();
  header.name = in.text();
  header.shard = in.get<uint32_t>();
  header.shard_count = in.get<uint32_t>();
  header.layout_hash = in.get<uint64_t>();
  header.parts = in.get<uint32_t>();
  const ByteSpan spec_bytes = in.bytes(in.get<uint32_t>());
  if (!in.at_end()) return malformed("its header does not hold together");
  Result<protocol::JobSpec> spec = protocol::decode_job_spec(spec_bytes);
  if (!spec) return std::unexpected(spec.error());
  header.spec = std::move(*spec);
  return header;
}

Result<StorePart> read_part(ByteSpan body, const OptimizerSpec& optimizer) {
  FieldReader in(body);
  StorePart part;
  part.part = in.get<uint32_t>();
  part.position.n = in.get<uint64_t>();
  part.arrays.steps = in.get<uint64_t>();
  part.position.summary = protocol::get_summary(in);
  const auto dimension = in.get<uint64_t>();
  const size_t states = optimizer_states(optimizer.optimizer);
  // The rest is the arrays, to the byte: nothing is made room for that is not there.
  in.expect(dimension >= 1 && dimension <= kDimensionMax && in.remaining() == dimension * sizeof(float) * (1 + states));
  if (!in.good()) return malformed("a part does not hold together");
  part.arrays.weights = get_values(in, dimension);
  for (size_t at = 0; at < states; ++at) part.arrays.states[at] = get_values(in, dimension);
  if (!in.good()) return malformed("a weight or a state is not finite");
  return part;
}

/// The records of a file, one after the other.
class Records {
 public:
  Records(uint64_t bytes, const ReadExactly& read) : left_(bytes), read_(read) {}

  Status begin() {
    std::array<uint8_t, kMagic.size()> magic = {};
    if (left_ < magic.size()) return malformed("it is too short");
    if (const Status got = read_(magic); !got) return got;
    left_ -= magic.size();
    if (magic == kMagic) return {};
    if (std::equal(kMagic.begin(), kMagic.end() - 1, magic.begin())) {
      return fail(ErrorCode::kUnsupported, "the save is of a version that this build does not read");
    }
    return malformed("it does not begin as one");
  }
  /// Returns the body of the next record; valid until the one after it.
  Result<ByteSpan> next() {
    uint64_t bytes = 0;
    if (left_ < kFrameBytes) return malformed("it is cut off");
    if (const Status got = get(bytes); !got) return std::unexpected(got.error());
    left_ -= kFrameBytes;
    if (bytes > left_) return malformed("it is cut off");
    left_ -= bytes;
    body_.resize(bytes);
    if (const Status got = read_(body_); !got) return std::unexpected(got.error());
    uint64_t hash = 0;
    if (const Status got = get(hash); !got) return std::unexpected(got.error());
    if (hash64(ByteSpan(body_), hash_) != hash) return malformed("a checksum does not fit");
    hash_ = hash;
    return ByteSpan(body_);
  }
  bool at_end() const { return left_ == 0; }

 private:
  Status get(uint64_t& value) {
    std::array<uint8_t, sizeof(value)> bytes = {};
    const Status got = read_(bytes);
    std::memcpy(&value, bytes.data(), sizeof(value));
    return got;
  }

  uint64_t left_;
  const ReadExactly& read_;
  ByteBuffer body_;
  uint64_t hash_ = 0;
};

}  // namespace

ByteSpan store_file_magic() { return kMagic; }

uint64_t store_record_hash(ByteSpan record) {
  uint64_t hash = 0;
  std::memcpy(&hash, record.last(sizeof(hash)).data(), sizeof(hash));
  return hash;
}

StoreRecord encode_store_header(const StoreHeader& header) {
  ByteBuffer record;
  ByteWriter writer(record);
  writer.put(uint64_t{0});
  writer.put(header.job);
  protocol::put_text(writer, header.name);
  writer.put(header.shard);
  writer.put(header.shard_count);
  writer.put(header.layout_hash);
  writer.put(header.parts);
  const ByteBuffer spec = protocol::encode_job_spec(header.spec);
  writer.put(static_cast<uint32_t>(spec.size()));
  writer.put_bytes(spec);
  return framed(std::move(record), 0);
}

StoreRecord encode_store_part(uint32_t part, const StorePosition& position, const StoreArrays& arrays,
                              uint64_t previous_hash) {
  ByteBuffer record;
  uint64_t bytes = arrays.weights.size() * sizeof(float);
  for (const std::vector<float>& state : arrays.states) bytes += state.size() * sizeof(float);
  record.reserve(bytes + 4096);
  ByteWriter writer(record);
  writer.put(uint64_t{0});
  writer.put(part);
  writer.put(position.n);
  writer.put(arrays.steps);
  protocol::put_summary(writer, position.summary);
  writer.put(uint64_t{arrays.weights.size()});
  writer.put_array<float>(arrays.weights);
  for (const std::vector<float>& state : arrays.states) writer.put_array<float>(state);
  return framed(std::move(record), previous_hash);
}

StoreRecord encode_store_end(uint32_t parts, uint64_t previous_hash) {
  ByteBuffer record;
  ByteWriter writer(record);
  writer.put(uint64_t{0});
  writer.put(parts);
  return framed(std::move(record), previous_hash);
}

Result<StoreFile> read_store_file(uint64_t bytes, const ReadExactly& read) {
  Records records(bytes, read);
  if (const Status begun = records.begin(); !begun) return std::unexpected(begun.error());
  const Result<ByteSpan> first = records.next();
  if (!first) return std::unexpected(first.error());
  Result<StoreHeader> header = read_header(*first);
  if (!header) return std::unexpected(header.error());
  StoreFile file{std::move(*header), {}};
  for (uint32_t at = 0; at < file.header.parts; ++at) {
    const Result<ByteSpan> body = records.next();
    if (!body) return std::unexpected(body.error());
    Result<StorePart> part = read_part(*body, file.header.spec.store.optimizer);
    if (!part) return std::unexpected(part.error());
    if (!file.parts.empty() && file.parts.back().part >= part->part) return malformed("its parts are out of order");
    file.parts.push_back(std::move(*part));
  }
  const Result<ByteSpan> last = records.next();
  if (!last) return std::unexpected(last.error());
  FieldReader end(*last);
  const auto parts = end.get<uint32_t>();
  if (!end.at_end() || parts != file.header.parts || !records.at_end()) {
    return malformed("its end is not one");
  }
  return file;
}

Result<bool> is_trained_by_another(uint64_t bytes, const ReadExactly& read, uint64_t job) {
  Records records(bytes, read);
  if (const Status begun = records.begin(); !begun) return std::unexpected(begun.error());
  const Result<ByteSpan> first = records.next();
  if (!first) return std::unexpected(first.error());
  const Result<StoreHeader> header = read_header(*first);
  if (!header) return std::unexpected(header.error());
  if (header->job == job) return false;
  for (uint32_t at = 0; at < header->parts; ++at) {
    const Result<ByteSpan> body = records.next();
    if (!body) return std::unexpected(body.error());
    FieldReader in(*body);
    (void)in.get<uint32_t>();
    if (in.get<uint64_t>() != 0 && in.good()) return true;
  }
  return false;
}

Status may_start_with(const StoreFile& saved, const StoreHeader& own) {
  const auto refuse = [&own](std::string_view difference) {
    return fail(ErrorCode::kJobMismatch,
                fmt::format("the save of job '{}' is of another one: {}", own.name, difference));
  };
  const StoreHeader& theirs = saved.header;
  if (theirs.name != own.name) return refuse(fmt::format("its name is '{}'", theirs.name));
  // Of the specification counts what weights and state are of: tensors and optimizer.
  protocol::JobSpec comparable = own.spec;
  comparable.store.optimizer = theirs.spec.store.optimizer;
  comparable.tensors = theirs.spec.tensors;
  for (size_t at = 0; at < std::min(comparable.tensors.size(), own.spec.tensors.size()); ++at) {
    protocol::TensorSpec tensor = own.spec.tensors[at];
    tensor.name = comparable.tensors[at].name;
    tensor.dimension = comparable.tensors[at].dimension;
    tensor.value_type = comparable.tensors[at].value_type;
    comparable.tensors[at] = std::move(tensor);
  }
  if (comparable != own.spec) {
    return refuse(fmt::format("{} (here: the save, there: the job)", protocol::first_difference(comparable, own.spec)));
  }
  if (theirs.shard_count != own.shard_count || theirs.shard != own.shard) {
    return refuse(fmt::format("it is of shard {} of {}, this is shard {} of {}", theirs.shard, theirs.shard_count,
                              own.shard, own.shard_count));
  }
  if (theirs.layout_hash != own.layout_hash || theirs.parts != own.parts) {
    return refuse("its tensors are cut into other parts (by selection, parts_per_shard or fuse_below)");
  }
  return {};
}

}  // namespace millrace::server

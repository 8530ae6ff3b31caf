#include "worker/core/saved_state.h"

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"

namespace millrace::worker {
namespace {

constexpr std::array<uint8_t, 7> kMagic = {'M', 'L', 'R', 'S', 'A', 'V', 'E'};
constexpr uint8_t kVersion = '2';
constexpr size_t kHeadBytes = kMagic.size() + 1 + sizeof(uint64_t);
constexpr size_t kTailBytes = sizeof(uint64_t);

void put_text(ByteWriter& writer, std::string_view text) {
  writer.put(static_cast<uint16_t>(text.size()));
  for (const char letter : text) writer.put(letter);
}

template <typename T>
void put_array(ByteWriter& writer, ByteBuffer& out, std::span<const T> values) {
  const size_t at = writer.size();
  out.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(out.data() + at, values.data(), values.size_bytes());
}

void put_entries(ByteWriter& writer, ByteBuffer& out, const Stream<float>& stream) {
  writer.put(static_cast<uint8_t>(stream.dense ? 1 : 0));
  writer.put(stream.count());
  put_array<uint32_t>(writer, out, stream.indices);
  put_array<float>(writer, out, stream.values);
}

void put_tensor(ByteWriter& writer, ByteBuffer& out, const SavedTensor& tensor) {
  put_text(writer, tensor.name);
  writer.put(tensor.steps_pushed);
  writer.put(tensor.residual.dimension);
  put_entries(writer, out, tensor.residual);
  writer.put(static_cast<uint8_t>(tensor.momentum ? 1 : 0));
  if (tensor.momentum) put_entries(writer, out, *tensor.momentum);
  writer.put(static_cast<uint8_t>(tensor.weights.empty() ? 0 : 1));
  put_array<float>(writer, out, tensor.weights);
}

void put_summary(ByteWriter& writer, const protocol::Summary& summary) {
  writer.put(static_cast<uint32_t>(summary.workers.size()));
  for (const protocol::SummaryEntry& entry : summary.workers) {
    writer.put(entry.worker);
    writer.put(entry.life);
    writer.put(entry.last_step);
    writer.put(entry.counted_mask);
    writer.put(entry.entered);
    writer.put(entry.carried);
    writer.put(static_cast<uint32_t>(entry.earlier_lives.size()));
    for (const auto& [life, last] : entry.earlier_lives) {
      writer.put(life);
      writer.put(last);
    }
  }
  writer.put(static_cast<uint32_t>(summary.epochs.size()));
  for (const auto& [epoch, first] : summary.epochs) {
    writer.put(epoch);
    writer.put(first);
  }
  writer.put(summary.threshold);
  writer.put(summary.log_digest);
}

/// Reads fields into places; once one is missing everything after it fails, too.
class Fields {
 public:
  explicit Fields(ByteSpan bytes) : reader_(bytes) {}

  template <typename T>
  Fields& operator>>(T& value) {
    const auto got = reader_.get<T>();
    good_ = good_ && got.has_value();
    if (good_) value = *got;
    return *this;
  }
  Fields& operator>>(std::string& text) {
    uint16_t size = 0;
    *this >> size;
    const auto bytes = good_ ? reader_.get_bytes(size) : std::nullopt;
    good_ = good_ && bytes.has_value();
    if (good_) text.assign(bytes->begin(), bytes->end());
    return *this;
  }
  template <typename T>
  void read_array(Buffer<T>& values, uint64_t count) {
    // The division keeps a hostile count from overflowing; memory is taken only for bytes that are there.
    if (!good_ || count > reader_.remaining() / sizeof(T)) {
      good_ = false;
      return;
    }
    const auto bytes = reader_.get_bytes(count * sizeof(T));
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), bytes->data(), bytes->size());
  }
  bool good() const { return good_; }
  bool at_end() const { return good_ && reader_.remaining() == 0; }
  /// True when `count` things of at least `bytes_each` can still be there.
  bool can_hold(uint64_t count, uint64_t bytes_each) const {
    return good_ && count <= reader_.remaining() / bytes_each;
  }

 private:
  ByteReader reader_;
  bool good_ = true;
};

Status read_entries(Fields& fields, Stream<float>& stream) {
  uint8_t dense = 0;
  uint64_t count = 0;
  fields >> dense >> count;
  stream.dense = dense != 0;
  if (dense == 0) fields.read_array(stream.indices, count);
  fields.read_array(stream.values, count);
  if (!fields.good() || dense > 1) return fail(ErrorCode::kMalformed, "a tensor of the saved state is cut off");
  return validate(std::as_const(stream).view());
}

Status read_tensor(Fields& fields, SavedTensor& tensor) {
  uint8_t with_momentum = 0;
  fields >> tensor.name >> tensor.steps_pushed >> tensor.residual.dimension;
  if (auto read = read_entries(fields, tensor.residual); !read) return read;
  fields >> with_momentum;
  if (!fields.good() || with_momentum > 1) {
    return fail(ErrorCode::kMalformed, "a tensor of the saved state is cut off");
  }
  if (with_momentum == 1) {
    Stream<float>& velocity = tensor.momentum.emplace(Stream<float>::empty(tensor.residual.dimension));
    if (auto read = read_entries(fields, velocity); !read) return read;
  }
  uint8_t with_weights = 0;
  fields >> with_weights;
  if (with_weights == 1) fields.read_array(tensor.weights, tensor.residual.dimension);
  if (!fields.good() || with_weights > 1) {
    return fail(ErrorCode::kMalformed, "a tensor of the saved state is cut off");
  }
  return {};
}

using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;

bool read_pairs(Fields& fields, Pairs& pairs) {
  uint32_t count = 0;
  fields >> count;
  if (!fields.can_hold(count, 2 * sizeof(uint64_t))) return false;
  pairs.resize(count);
  for (auto& [first, second] : pairs) fields >> first >> second;
  return true;
}

bool read_summary(Fields& fields, protocol::Summary& summary) {
  constexpr uint64_t kEntryBytes = 2 * sizeof(uint32_t) + 5 * sizeof(uint64_t);
  uint32_t workers = 0;
  fields >> workers;
  if (!fields.can_hold(workers, kEntryBytes)) return false;
  summary.workers.resize(workers);
  for (protocol::SummaryEntry& entry : summary.workers) {
    fields >> entry.worker >> entry.life >> entry.last_step >> entry.counted_mask >> entry.entered >> entry.carried;
    if (!read_pairs(fields, entry.earlier_lives)) return false;
  }
  if (!read_pairs(fields, summary.epochs)) return false;
  fields >> summary.threshold >> summary.log_digest;
  return fields.good();
}

Result<SavedState> read_body(ByteSpan body) {
  Fields fields(body);
  SavedState state;
  uint32_t parts = 0;
  uint32_t tensors = 0;
  fields >> state.job >> state.job_name >> state.spec_hash >> state.layout_hash >> state.worker >> state.life >>
      state.epoch >> state.lineage >> parts;
  constexpr uint64_t kPartBytes = 5 * sizeof(uint64_t) + 3 * sizeof(uint32_t);
  if (!fields.can_hold(parts, kPartBytes))
    return fail(ErrorCode::kMalformed, "the saved state's list of parts is cut off");
  state.parts.resize(parts);
  for (SavedPart& part : state.parts) {
    fields >> part.part >> part.n >> part.decided_in >> part.log_digest >> part.lineage;
    if (!read_summary(fields, part.summary)) return fail(ErrorCode::kMalformed, "a part of the saved state is cut off");
  }
  fields >> tensors;
  constexpr uint64_t kTensorBytesMin = 29;
  if (!fields.can_hold(tensors, kTensorBytesMin)) {
    return fail(ErrorCode::kMalformed, "the saved state's list of tensors is cut off");
  }
  state.tensors.resize(tensors);
  for (SavedTensor& tensor : state.tensors) {
    if (auto read = read_tensor(fields, tensor); !read) return std::unexpected(read.error());
  }
  if (!fields.at_end()) return fail(ErrorCode::kMalformed, "bytes follow the saved state's last tensor");
  return state;
}

}  // namespace

Status fits(const SavedState& state, uint32_t worker, const protocol::JobSpec& spec) {
  const auto differs = [](const std::string& what, const std::string& here, const std::string& there) {
    return fail(ErrorCode::kJobMismatch,
                "the saved state does not fit: " + what + " " + there + " in it, " + here + " in this job");
  };
  if (state.worker != worker) return differs("worker", std::to_string(worker), std::to_string(state.worker));
  if (state.tensors.size() != spec.tensors.size()) {
    return differs("number of tensors", std::to_string(spec.tensors.size()), std::to_string(state.tensors.size()));
  }
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const SavedTensor& saved = state.tensors[i];
    if (saved.name != spec.tensors[i].name) {
      return differs("name of tensor " + std::to_string(i), "'" + spec.tensors[i].name + "'", "'" + saved.name + "'");
    }
    if (saved.residual.dimension != spec.tensors[i].dimension) {
      return differs("dimension of tensor '" + saved.name + "'", std::to_string(spec.tensors[i].dimension),
                     std::to_string(saved.residual.dimension));
    }
  }
  return {};
}

ByteBuffer encode_saved_state(const SavedState& state) {
  ByteBuffer out;
  ByteWriter writer(out);
  writer.put_bytes(kMagic);
  writer.put(kVersion);
  writer.put(uint64_t{0});
  writer.put(state.job);
  put_text(writer, state.job_name);
  writer.put(state.spec_hash);
  writer.put(state.layout_hash);
  writer.put(state.worker);
  writer.put(state.life);
  writer.put(state.epoch);
  writer.put(state.lineage);
  writer.put(static_cast<uint32_t>(state.parts.size()));
  for (const SavedPart& part : state.parts) {
    writer.put(part.part);
    writer.put(part.n);
    writer.put(part.decided_in);
    writer.put(part.log_digest);
    writer.put(part.lineage);
    put_summary(writer, part.summary);
  }
  writer.put(static_cast<uint32_t>(state.tensors.size()));
  for (const SavedTensor& tensor : state.tensors) put_tensor(writer, out, tensor);
  const uint64_t body_bytes = out.size() - kHeadBytes;
  std::memcpy(out.data() + kMagic.size() + 1, &body_bytes, sizeof(body_bytes));
  writer.put(hash64(ByteSpan(out)));
  return out;
}

Result<SavedState> decode_saved_state(ByteSpan bytes) {
  if (bytes.size() < kHeadBytes + kTailBytes || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return fail(ErrorCode::kMalformed, "this is not a saved Millrace worker state");
  }
  if (bytes[kMagic.size()] != kVersion) {
    return fail(ErrorCode::kUnsupported, "the saved state is of another version of the format");
  }
  uint64_t body_bytes = 0;
  uint64_t checksum = 0;
  std::memcpy(&body_bytes, bytes.data() + kMagic.size() + 1, sizeof(body_bytes));
  std::memcpy(&checksum, bytes.data() + bytes.size() - kTailBytes, sizeof(checksum));
  if (body_bytes != bytes.size() - kHeadBytes - kTailBytes) {
    return fail(ErrorCode::kMalformed, "the saved state is cut off, or something follows it");
  }
  if (hash64(bytes.first(bytes.size() - kTailBytes)) != checksum) {
    return fail(ErrorCode::kMalformed, "the saved state's checksum does not hold: the file was altered");
  }
  return read_body(bytes.subspan(kHeadBytes, body_bytes));
}

}  // namespace millrace::worker

#include "worker/core/rejoin/saved_state.h"

#include <array>
#include <cstring>
#include <utility>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "protocol/base/field_reader.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/messages/summary_bytes.h"

namespace millrace::worker {
namespace {

using protocol::FieldReader;
using protocol::put_text;

constexpr std::array<uint8_t, 7> kMagic = {'M', 'L', 'R', 'S', 'A', 'V', 'E'};
constexpr uint8_t kVersion = '3';  ///< raised with every change of the bytes: protocol/wire/versions.md
constexpr size_t kHeadBytes = kMagic.size() + 1 + sizeof(uint64_t);
constexpr size_t kTailBytes = sizeof(uint64_t);

void put_entries(ByteWriter& writer, const Stream& stream) {
  writer.put(static_cast<uint8_t>(stream.dense ? 1 : 0));
  writer.put(stream.count());
  writer.put_array<uint32_t>(stream.indices);
  writer.put_array<float>(stream.values);
}

void put_tensor(ByteWriter& writer, const SavedTensor& tensor) {
  put_text(writer, tensor.name);
  writer.put(tensor.steps_pushed);
  writer.put(tensor.residual.dimension);
  put_entries(writer, tensor.residual);
  writer.put(static_cast<uint8_t>(tensor.momentum ? 1 : 0));
  if (tensor.momentum) put_entries(writer, *tensor.momentum);
  writer.put(static_cast<uint8_t>(tensor.weights.empty() ? 0 : 1));
  writer.put_array<float>(tensor.weights);
}

std::unexpected<Error> truncated(const std::string& what) {
  return fail(ErrorCode::kMalformed, what + " of the saved state is cut off, or cannot be");
}

template <typename T>
void read_array(FieldReader& in, Buffer<T>& values, uint64_t count) {
  // holds() keeps a hostile count from overflowing; memory is taken only for bytes that are there.
  in.expect(in.holds(count, sizeof(T)));
  const ByteSpan bytes = in.bytes(in.good() ? count * sizeof(T) : 0);
  values.resize(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

Status read_entries(FieldReader& in, Stream& stream) {
  stream.dense = in.flag();
  const auto count = in.get<uint64_t>();
  if (!stream.dense) read_array(in, stream.indices, count);
  read_array(in, stream.values, count);
  if (!in.good()) return truncated("a tensor");
  return validate(std::as_const(stream).view());
}

Status read_tensor(FieldReader& in, SavedTensor& tensor) {
  tensor.name = in.text(protocol::kNameBytesMax);
  in >> tensor.steps_pushed >> tensor.residual.dimension;
  if (auto read = read_entries(in, tensor.residual); !read) return read;
  if (in.flag()) {
    Stream& velocity = tensor.momentum.emplace(Stream::empty(tensor.residual.dimension));
    if (auto read = read_entries(in, velocity); !read) return read;
  }
  if (in.flag()) read_array(in, tensor.weights, tensor.residual.dimension);
  return in.good() ? Status() : truncated("a tensor");
}

Result<SavedState> read_body(ByteSpan body) {
  constexpr size_t kPartBytesMin = 6 * sizeof(uint64_t) + 3 * sizeof(uint32_t);
  constexpr size_t kTensorBytesMin = 29;
  FieldReader in(body);
  SavedState state;
  in >> state.job;
  state.job_name = in.text(protocol::kNameBytesMax);
  in >> state.spec_hash >> state.layout_hash >> state.worker >> state.incarnation >> state.epoch >> state.branch;
  state.parts.resize(in.count(kPartBytesMin, UINT32_MAX));
  if (!in.good()) return truncated("the list of parts");
  for (SavedPart& part : state.parts) {
    in >> part.part >> part.n >> part.decided_in >> part.log_digest >> part.branch;
    part.summary = protocol::get_summary(in);
    if (!in.good()) return truncated("a part");
  }
  state.tensors.resize(in.count(kTensorBytesMin, UINT32_MAX));
  if (!in.good()) return truncated("the list of tensors");
  for (SavedTensor& tensor : state.tensors) {
    if (auto read = read_tensor(in, tensor); !read) return std::unexpected(read.error());
  }
  if (!in.at_end()) return fail(ErrorCode::kMalformed, "bytes follow the saved state's last tensor");
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
  writer.put(state.incarnation);
  writer.put(state.epoch);
  writer.put(state.branch);
  writer.put(static_cast<uint32_t>(state.parts.size()));
  for (const SavedPart& part : state.parts) {
    writer.put(part.part);
    writer.put(part.n);
    writer.put(part.decided_in);
    writer.put(part.log_digest);
    writer.put(part.branch);
    put_summary(writer, part.summary);
  }
  writer.put(static_cast<uint32_t>(state.tensors.size()));
  for (const SavedTensor& tensor : state.tensors) put_tensor(writer, tensor);
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

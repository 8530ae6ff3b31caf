#include "worker/training/model/model_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "protocol/files/atomic_file.h"
#include "worker/program/memory_room.h"

namespace millrace::training {
namespace {

constexpr std::array<char, 8> kMagic = {'M', 'R', 'L', 'I', 'N', 'E', 'A', 'R'};
constexpr uint32_t kVersion = 2;     ///< raised with every change of the bytes: protocol/wire/versions.md
constexpr uint32_t kVersionMin = 1;  ///< it does not say what rows it was trained on
constexpr uint32_t kDense = 0;
constexpr uint32_t kSparse = 1;

constexpr size_t kModelFileReadBytes = size_t{1} << 20;

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};

bool begins_as_a_model(ByteSpan bytes) {
  return bytes.size() >= kMagic.size() && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

constexpr uint32_t kFromZero = 256;

uint32_t rows_form(const std::optional<TrainedOn>& rows) {
  if (!rows) return 0;
  return std::to_underlying(rows->label_pair) + (rows->index_base == IndexBase::kZero ? kFromZero : 0);
}

/// Returns the rows that rows_form() gave that number. Empty: it gives no such number.
std::optional<TrainedOn> rows_of_form(uint32_t form) {
  const uint32_t pair = form & ~kFromZero;
  if (pair < std::to_underlying(LabelPair::kZeroOne) || pair > std::to_underlying(LabelPair::kOneTwo))
    return std::nullopt;
  return TrainedOn{static_cast<LabelPair>(pair), (form & kFromZero) != 0 ? IndexBase::kZero : IndexBase::kOne};
}

std::unexpected<Error> malformed(const char* sentence) { return fail(ErrorCode::kMalformed, sentence); }

/// The parameters with the scale multiplied in, written into model.values().
Status decode_values(ByteReader& reader, uint32_t form, uint64_t count, LinearModel& model) {
  const uint64_t size = model.tensor_dimension();
  if (form == kDense ? count != size : count > size)
    return malformed("its count of values does not agree with its dimension");
  ByteReader indices({});
  if (form == kSparse) indices = ByteReader(*reader.get_bytes(count * sizeof(uint32_t)));
  ByteReader values(*reader.get_bytes(count * sizeof(float)));
  uint64_t next = 0;
  for (uint64_t at = 0; at < count; ++at) {
    const uint64_t index = form == kSparse ? uint64_t{*indices.get<uint32_t>()} : at;
    if (index < next || index >= size) return malformed("its indices do not increase below its dimension");
    next = index + 1;
    model.values()[index] = *values.get<float>();
    if (!std::isfinite(model.values()[index])) return malformed("it holds a weight that is not finite");
  }
  return {};
}

}  // namespace

ByteBuffer encode_model(const LinearModel& model) {
  const uint64_t size = model.tensor_dimension();
  uint64_t nonzero = 0;
  for (const float value : model.values()) nonzero += value != 0 ? 1 : 0;
  const bool sparse = nonzero * 8 < size * 4;
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(kMagic);
  writer.put(kVersion);
  writer.put(static_cast<uint32_t>(model.loss()));
  writer.put(model.dimension());
  writer.put(sparse ? kSparse : kDense);
  writer.put(rows_form(model.trained_on()));
  writer.put(sparse ? nonzero : size);
  bytes.reserve(bytes.size() + (sparse ? nonzero * 8 : size * 4) + 8);
  for (uint64_t index = 0; sparse && index < size; ++index) {
    if (model.values()[index] != 0) writer.put(static_cast<uint32_t>(index));
  }
  for (uint64_t index = 0; index < size; ++index) {
    if (!sparse || model.values()[index] != 0) writer.put(static_cast<float>(model.weight(index)));
  }
  writer.put(hash64(ByteSpan(bytes)));
  return bytes;
}

Result<LinearModel> decode_model(ByteSpan bytes) {
  constexpr size_t kChecksumBytes = 8;
  if (!begins_as_a_model(bytes)) return malformed("it is not a model of `millrace train`");
  if (bytes.size() < kMagic.size() + kChecksumBytes) return malformed("it ends too early");
  ByteReader reader(bytes.subspan(kMagic.size(), bytes.size() - kMagic.size() - kChecksumBytes));
  const auto version = reader.get<uint32_t>();
  if (version && (*version < kVersionMin || *version > kVersion)) {
    return fail(ErrorCode::kUnsupported,
                "it has version " + std::to_string(*version) + "; this program reads versions 1 and 2");
  }
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + bytes.size() - kChecksumBytes, kChecksumBytes);
  if (hash64(bytes.first(bytes.size() - kChecksumBytes)) != checksum) {
    return malformed("its checksum does not agree: it is damaged or truncated");
  }
  const auto loss = reader.get<uint32_t>();
  const auto dimension = reader.get<uint64_t>();
  const auto form = reader.get<uint32_t>();
  const auto rows = reader.get<uint32_t>();
  const auto count = reader.get<uint64_t>();
  if (!count || *loss < 1 || *loss > static_cast<uint32_t>(Loss::kSquaredHinge) || *dimension < 1 ||
      *dimension >= kDimensionMax || *form > kSparse ||
      (*rows != 0 && (*version == kVersionMin || !rows_of_form(*rows)))) {
    return malformed("its head holds what no model has");
  }
  const uint64_t value_bytes = *form == kSparse ? 8 : 4;
  if (*count > kDimensionMax || *count * value_bytes != reader.remaining())
    return malformed("its length does not agree with its head");
  // A few bytes may claim any dimension.
  const std::string of = std::to_string(*dimension) + " features";
  if (Status fits = program::check_model_fits(of, *dimension, program::memory_available_bytes()); !fits)
    return std::unexpected(fits.error());
  LinearModel model(static_cast<Loss>(*loss), *dimension);
  if (const auto known = rows_of_form(*rows)) model.set_trained_on(*known);
  if (Status status = decode_values(reader, *form, *count, model); !status) return std::unexpected(status.error());
  return model;
}

Status write_model(const std::string& path, const LinearModel& model) {
  if (!std::ranges::all_of(model.values(), [](float value) { return std::isfinite(value); })) {
    return fail(ErrorCode::kNonFinite, "a weight is no longer finite: training diverged, " + path +
                                           " is not written; train with a lower --lr");
  }
  return files::write_file_atomically(path, encode_model(model));
}

Result<LinearModel> read_model(const std::string& path) {
  const auto refuse = [&path] { return fail(ErrorCode::kIo, path + ": " + std::strerror(errno)); };
  errno = 0;
  const std::unique_ptr<FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) return refuse();
  ByteBuffer bytes;
  for (size_t got = kModelFileReadBytes; got == kModelFileReadBytes;) {
    const size_t held = bytes.size();
    bytes.resize(held + kModelFileReadBytes);
    got = std::fread(bytes.data() + held, 1, kModelFileReadBytes, file.get());
    bytes.resize(held + got);
    if (!begins_as_a_model(bytes)) break;  // what else it is may have no end
  }
  if (std::ferror(file.get()) != 0) return refuse();
  auto model = decode_model(bytes);
  if (!model) return fail(model.error().code, path + ": " + model.error().message);
  return model;
}

}  // namespace millrace::training

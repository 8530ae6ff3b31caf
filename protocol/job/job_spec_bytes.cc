#include <fmt/format.h>

#include <cmath>
#include <string>
#include <type_traits>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/job/enum_words.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/job_spec_fields.h"

namespace millrace::protocol {
namespace {

constexpr uint16_t kSpecVersion = 3;  ///< raised with every change of the fields: protocol/wire/versions.md
constexpr size_t kTensorBytesMin = 2 + 8 + 1 + 4 + 4;  // a tensor with an empty name and no overrides

class Encoder {
 public:
  explicit Encoder(ByteBuffer& out) : writer_(out) {}

  void field(std::string_view, const std::string& text) { put_text(writer_, text); }
  void words(const OptionInfo&, const std::string& text) { put_text(writer_, text); }
  void field(std::string_view, std::chrono::milliseconds value) { writer_.put(wire_ms(value)); }
  void field(std::string_view, double value) { writer_.put(value == 0 ? 0.0 : value); }  // -0 equals 0: one form
  void field(std::string_view, bool flag) { writer_.put(static_cast<uint8_t>(flag)); }
  template <typename T>
    requires std::is_integral_v<T> || std::is_enum_v<T>
  void field(std::string_view, T value) {
    writer_.put(value);
  }
  template <typename T>
  void option(const OptionInfo& info, const T& value) {
    field(info.name, value);
  }
  template <typename T, typename Visit>
  void text(const OptionInfo&, const T& part, Visit visit) {
    visit(*this, part);
  }
  template <typename T, typename Visit>
  void group(std::string_view, const T& part, Visit visit) {
    visit(*this, part);
  }
  template <typename T, typename Visit>
  void optional(std::string_view, const std::optional<T>& part, Visit visit) {
    writer_.put(static_cast<uint8_t>(part.has_value()));
    if (part) visit(*this, *part);
  }
  void count(uint32_t value) { writer_.put(value); }

 private:
  ByteWriter writer_;
};

/// Reads the fields; the first error stays, later reads do nothing.
class Decoder {
 public:
  explicit Decoder(ByteSpan bytes) : reader_(bytes) {}

  void field(std::string_view name, std::string& text) { read_text(name, text, kNameBytesMax); }
  void words(const OptionInfo& info, std::string& text) { read_text(info.name, text, kRecipeBytesMax); }
  void field(std::string_view name, std::chrono::milliseconds& value) {
    value = std::chrono::milliseconds(get<uint32_t>(name));
  }
  void field(std::string_view name, double& value) {
    const double read = get<double>(name);
    if (error_) return;
    // One form for each value: NaN, infinities and -0 do not occur.
    if (!std::isfinite(read) || (read == 0 && std::signbit(read))) {
      return fail_with(ErrorCode::kMalformed, name, "is not a finite number in its canonical form");
    }
    value = read;
  }
  void field(std::string_view name, bool& flag) {
    const auto read = get<uint8_t>(name);
    if (read > 1) return fail_with(ErrorCode::kMalformed, name, "is a flag that is neither 0 nor 1");
    flag = read == 1;
  }
  template <typename T>
    requires std::is_integral_v<T>
  void field(std::string_view name, T& value) {
    value = get<T>(name);
  }
  template <typename T>
    requires std::is_enum_v<T>
  void field(std::string_view name, T& value) {
    const auto read = get<std::underlying_type_t<T>>(name);
    if (error_) return;
    if (!known(static_cast<T>(read))) {
      return fail_with(ErrorCode::kUnsupported, name,
                       fmt::format("has the number {}, which this version does not know", read));
    }
    value = static_cast<T>(read);
  }
  template <typename T>
  void option(const OptionInfo& info, T& value) {
    field(info.name, value);
  }
  template <typename T, typename Visit>
  void text(const OptionInfo&, T& part, Visit visit) {
    visit(*this, part);
  }
  template <typename T, typename Visit>
  void group(std::string_view, T& part, Visit visit) {
    visit(*this, part);
  }
  template <typename T, typename Visit>
  void optional(std::string_view name, std::optional<T>& part, Visit visit) {
    bool present = false;
    field(name, present);
    if (error_ || !present) return;
    visit(*this, part.emplace());
  }

  template <typename T>
  T get(std::string_view name) {
    if (error_) return T{};
    const std::optional<T> read = reader_.get<T>();
    if (!read) fail_with(ErrorCode::kMalformed, name, "is cut off");
    return read.value_or(T{});
  }
  void fail_with(ErrorCode code, std::string_view name, std::string_view what) {
    if (!error_) error_ = Error{code, fmt::format("job specification: {}{} {}", where_, name, what)};
  }
  void read_text(std::string_view name, std::string& text, size_t bytes_max) {
    if (error_) return;
    std::optional<std::string> read = get_text(reader_, bytes_max);
    if (!read) return fail_with(ErrorCode::kMalformed, name, "is cut off, too long or not printable text");
    text = std::move(*read);
  }
  void at_tensor(uint32_t index) { where_ = fmt::format("tensor {}: ", index); }
  size_t remaining() const { return reader_.remaining(); }
  const std::optional<Error>& error() const { return error_; }

 private:
  ByteReader reader_;
  std::string where_;
  std::optional<Error> error_;
};

}  // namespace

ByteBuffer encode_job_spec(const JobSpec& spec) {
  ByteBuffer bytes;
  Encoder encoder(bytes);
  encoder.field("version", kSpecVersion);
  fields::visit_job(encoder, spec);
  encoder.count(static_cast<uint32_t>(spec.tensors.size()));
  for (const TensorSpec& tensor : spec.tensors) fields::visit_tensor(encoder, tensor);
  return bytes;
}

Result<JobSpec> decode_job_spec(ByteSpan bytes) {
  if (bytes.size() > kJobSpecBytesMax) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("job specification: {} bytes, the limit is {}", bytes.size(), kJobSpecBytesMax));
  }
  Decoder decoder(bytes);
  const auto version = decoder.get<uint16_t>("version");
  if (!decoder.error() && version != kSpecVersion) {
    decoder.fail_with(ErrorCode::kUnsupported, "version",
                      fmt::format("is {}, this build reads {}", version, kSpecVersion));
  }
  JobSpec spec;
  fields::visit_job(decoder, spec);
  const auto tensors = decoder.get<uint32_t>("tensor count");
  if (decoder.error()) return std::unexpected(*decoder.error());
  if (tensors > kTensorsMax) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("job specification: {} tensors, the limit is {}", tensors, kTensorsMax));
  }
  if (tensors > decoder.remaining() / kTensorBytesMin) {
    return fail(ErrorCode::kMalformed, fmt::format("job specification: too short for {} tensors", tensors));
  }
  spec.tensors.resize(tensors);
  for (uint32_t i = 0; i < tensors && !decoder.error(); ++i) {
    decoder.at_tensor(i);
    fields::visit_tensor(decoder, spec.tensors[i]);
  }
  if (decoder.error()) return std::unexpected(*decoder.error());
  if (decoder.remaining() > 0) return fail(ErrorCode::kMalformed, "job specification: bytes after its end");
  return spec;
}

uint64_t job_spec_hash(const JobSpec& spec) { return hash64(encode_job_spec(spec)); }

}  // namespace millrace::protocol

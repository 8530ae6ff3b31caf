#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/lossy_index_codec.h"

namespace millrace {
namespace {

/// Writes the values for the indices that a codec will decode in place of the selected ones. It is the selected value
/// where there is one, else the original's, else 0. Returns how many were not selected.
uint64_t fill(const StreamView& selected, const StreamView& original, IndexSpan indices, std::span<float> values) {
  size_t at_selected = 0;
  size_t at_original = 0;
  uint64_t added = 0;
  for (size_t j = 0; j < indices.size(); ++j) {
    const uint32_t index = indices[j];
    while (at_selected < selected.indices.size() && selected.indices[at_selected] < index) ++at_selected;
    if (at_selected < selected.indices.size() && selected.indices[at_selected] == index) {
      values[j] = selected.values[at_selected++];
      continue;
    }
    ++added;
    if (original.dense) {
      values[j] = original.values[index];
    } else {
      const auto from = original.indices.begin() + static_cast<std::ptrdiff_t>(at_original);
      const auto found = std::lower_bound(from, original.indices.end(), index);
      at_original = static_cast<size_t>(found - original.indices.begin());
      values[j] = found != original.indices.end() && *found == index ? original.values[at_original] : 0.0F;
    }
  }
  return added;
}

Status check_shapes(const StreamView& selected, const StreamView& original, const CodecSpec& spec) {
  if (auto valid = validate(spec); !valid) return valid;
  MILLRACE_CHECK(selected.dense ? selected.values.size() == selected.dimension && selected.indices.empty()
                                : selected.indices.size() == selected.values.size(),
                 selected.dimension, selected.indices.size(), selected.values.size());
  MILLRACE_CHECK(selected.indices.empty() || selected.indices.back() < selected.dimension, selected.dimension);
  if (original.dimension != 0 && original.dimension != selected.dimension) {
    return fail(ErrorCode::kInvalidArgument, "the original has " + std::to_string(original.dimension) +
                                                 " entries and the selected stream " +
                                                 std::to_string(selected.dimension));
  }
  return {};
}

/// Codes the indices. Where others are decoded than were selected, `filled` becomes the stream that will be.
Status append_indices(const StreamView& selected, const StreamView& original, const EncodeOptions& options,
                      ByteBuffer& out, StreamCoding& coding, Stream& filled) {
  const IndexCodec* codec = find_index_codec(options.spec.index);
  IndexBuffer decoded;
  if (auto done =
          codec->encode(selected.indices, selected.dimension, options, out, codec->lossless() ? nullptr : &decoded);
      !done) {
    return done;
  }
  coding.index_codec = codec->id();
  if (codec->lossless() || std::ranges::equal(decoded, selected.indices)) return {};
  filled.dimension = selected.dimension;
  filled.indices = std::move(decoded);
  filled.values.resize(filled.indices.size());
  coding.false_positives = fill(selected, original, filled.indices, filled.values);
  const PickingIndexCodec* picking = picking_codec(*codec);
  MILLRACE_CHECK(picking == nullptr ? filled.count() == selected.count() + coding.false_positives
                                    : filled.count() == selected.count() && coding.false_positives > 0,
                 filled.count(), selected.count(), coding.false_positives);
  if (picking != nullptr && picking->by_position()) std::ranges::copy(selected.values, filled.values.begin());
  return {};
}

}  // namespace

Result<StreamCoding> append_stream(const StreamView& selected, const StreamView& original, const EncodeOptions& options,
                                   ByteBuffer& index_out, ByteBuffer& value_out, uint64_t& index_bytes) {
  if (auto checked = check_shapes(selected, original, options.spec); !checked) return std::unexpected(checked.error());
  StreamCoding coding;
  coding.dimension = selected.dimension;
  coding.dense = selected.dense;
  Stream filled;
  const size_t start = index_out.size();
  if (!selected.dense) {
    if (auto done = append_indices(selected, original, options, index_out, coding, filled); !done) {
      return std::unexpected(done.error());
    }
  }
  index_bytes = index_out.size() - start;
  const StreamView sent = coding.false_positives > 0 ? filled.view() : selected;
  coding.count = sent.count();

  const ValueCodec* codec = find_value_codec(options.spec.value);
  coding.value_codec = codec->id();
  const bool values_exact = codec->lossless(options.spec);
  Buffer<float> decoded(values_exact ? 0 : sent.count());
  if (auto done = codec->encode(sent.indices, sent.values, options, value_out, std::span<float>(decoded)); !done) {
    return std::unexpected(done.error());
  }
  coding.exact = values_exact && coding.false_positives == 0;
  if (coding.exact) return coding;
  coding.decoded.dimension = selected.dimension;
  coding.decoded.dense = selected.dense;
  if (coding.false_positives > 0) {
    coding.decoded.indices = std::move(filled.indices);
  } else {
    coding.decoded.indices.resize(selected.indices.size());
    if (!selected.indices.empty()) {
      std::memcpy(coding.decoded.indices.data(), selected.indices.data(), selected.indices.size_bytes());
    }
  }
  coding.decoded.values = values_exact ? std::move(filled.values) : std::move(decoded);
  return coding;
}

Result<CodedStream> encode_stream(const StreamView& selected, const StreamView& original,
                                  const EncodeOptions& options) {
  CodedStream coded;
  uint64_t index_bytes = 0;
  auto coding = append_stream(selected, original, options, coded.index_bytes, coded.value_bytes, index_bytes);
  if (!coding) return std::unexpected(coding.error());
  static_cast<StreamCoding&>(coded) = std::move(*coding);
  return coded;
}

}  // namespace millrace

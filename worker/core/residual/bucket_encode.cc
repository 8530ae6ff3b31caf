#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/container/container.h"
#include "worker/core/residual/bucket.h"

namespace millrace::worker {
namespace {

constexpr uint64_t kNoIndex = std::numeric_limits<uint64_t>::max();

/// Reads a stream in index order, dense or sparse.
class Cursor {
 public:
  explicit Cursor(const StreamView& stream) : stream_(stream) {}
  uint64_t index() const {
    if (at_ >= stream_.values.size()) return kNoIndex;
    return stream_.dense ? at_ : stream_.indices[at_];
  }
  float value() const { return stream_.values[at_]; }
  void advance() { ++at_; }
  /// The value at `index`, 0 where there is none. Indices must be asked for in increasing order.
  float value_at(uint64_t index) {
    if (stream_.dense) return stream_.values[index];
    const auto from = stream_.indices.begin() + static_cast<std::ptrdiff_t>(at_);
    at_ = static_cast<size_t>(std::lower_bound(from, stream_.indices.end(), index) - stream_.indices.begin());
    return this->index() == index ? value() : 0.0f;
  }

 private:
  StreamView stream_;
  size_t at_ = 0;
};

}  // namespace

/// Copies the part's selected values. A dense push of a mostly zero gradient goes out in the smaller form.
Result<Stream> Bucket::copy_part(size_t at) const {
  const IndexRange range = range_of_part(at);
  if (residual_.holds_selection()) return residual_.copy_part(range);
  return in_smaller_form(slice_of(selected_.view(), range.begin, range.end));
}

const CodecChoice* Bucket::choose_codecs(ChoiceInput input) {
  MILLRACE_CHECK(codec_.automatic);
  if (uncompressed_) return nullptr;
  input.spec = codec_;
  input.pieces = static_cast<uint32_t>(parts_.size());
  return chooser_.choose(selected_.view(), input) ? chooser_.choice() : nullptr;
}

Result<CodedPart> Bucket::code(size_t at, const EncodeOptions& options) {
  MILLRACE_CHECK(parts_left_ > 0 && coded_[at] == 0, parts_left_, at);
  const EncodeOptions chosen = options_of_step(options);
  if (!residual_.holds_selection()) return code_copy(at, chosen);
  auto in_sum = code_in_sum(at, chosen);
  if (!in_sum) return std::unexpected(in_sum.error());
  if (*in_sum) return std::move(**in_sum);
  // The sum keeps the values while the code of their copy may fail or throw.
  auto coded = code_copy(at, chosen);
  if (coded) residual_.forget(range_of_part(at));
  return coded;
}

/// Says whether a device keeps the selected entries for keep_errors(). It has the values as they were taken: before the
/// grid, and before another form was chosen.
TakenEntries Bucket::keeps() const {
  const bool returns = spec_.codec_error == protocol::CodecError::kRetain && !residual_.adds_in_push();
  const bool as_taken = !grid_ && !codec_.automatic && device_codes(codec_, dimension_);
  return returns && as_taken ? TakenEntries::kKept : TakenEntries::kForgotten;
}

bool Bucket::has_returned(size_t at) const {
  return std::ranges::any_of(returned_, [at](const ReturnedPiece& piece) { return piece.at == at; });
}

/// Leaves the errors of a part's value code in the sum, if they can be computed where the sum is.
///
/// Errors that return join the sum behind the entries that returned before. f32 sums depend on the order: so errors of
/// a part with such entries return, too.
Result<Bucket::ErrorsOf> Bucket::keep_errors(size_t at, const EncodeOptions& options) {
  const bool kept = keeps() == TakenEntries::kKept && !residual_.holds_selection() && !selected_.dense;
  if (!kept || has_returned(at)) return ErrorsOf::kPiece;
  returned_.reserve(returned_.size() + 1);  // once the sum has the errors no memory is taken
  const auto [first, last] = range_of(selected_.indices, parts_[at].begin, parts_[at].end);
  const auto stay = residual_.keep_errors({first, last}, options);
  if (!stay) return std::unexpected(stay.error());
  return *stay ? ErrorsOf::kSum : ErrorsOf::kPiece;
}

/// Codes a copy of the part's selected values.
Result<CodedPart> Bucket::code_copy(size_t at, const EncodeOptions& chosen) {
  if (goes_plain(chosen.spec)) return code_plain(at);
  auto copied = copy_part(at);
  if (!copied) return std::unexpected(copied.error());
  Stream local = std::move(*copied);
  const bool may_form = !uncompressed_;
  if (auto formed = may_form ? chooser_.formed(local.view(), CodedForm::kEither) : std::nullopt) {
    if (formed->dense) return code_dense(at, std::move(local), *formed, chosen);
    local = std::move(*formed);
  }
  // The entries that were not selected: a codec that sends additional entries takes their values from here.
  Stream rest, all;
  const bool exact_indices = find_index_codec(chosen.spec.index)->lossless();
  if (!exact_indices && !local.dense) rest = slice_of(residual_.view(all), parts_[at].begin, parts_[at].end);
  auto container = encode_container(local.view(), rest.view(), chosen);
  if (!container) return std::unexpected(container.error());
  SharedBytes payload = SharedBytes::from(std::move(container->bytes));
  if (container->exact) {
    SharedStream sent = SharedStream::from(std::move(local));
    part_is_coded(at, sent.view.count());
    return CodedPart{std::move(payload), std::move(sent)};
  }
  SharedStream sent = SharedStream::from(std::move(container->decoded));
  // A codec changed values at the selected indices only, as QSGD does: on the host the differences can wait until the
  // bytes are sent.
  const bool same_indices = local.dense == sent.view.dense && std::ranges::equal(local.indices, sent.view.indices);
  if (!same_indices) {
    resolve_encoded(at, local.view(), sent.view, rest.view());
  } else if (spec_.codec_error == protocol::CodecError::kRetain) {
    const auto errors = local.dense ? Result<ErrorsOf>(ErrorsOf::kPiece) : keep_errors(at, chosen);
    if (!errors) return std::unexpected(errors.error());
    put_off({at, Recoded{std::move(local), sent, *errors}});
  } else {
    lose_difference(at, local.view(), sent.view);
  }
  counters_.false_positives += container->false_positives;
  part_is_coded(at, sent.view.count());
  return CodedPart{std::move(payload), std::move(sent)};
}

EncodeOptions Bucket::options_of_step(EncodeOptions options) const {
  if (uncompressed_) {
    options.spec = without_loss(codec_);
    options.spec.automatic = false;
  } else if (codec_.automatic) {
    options.spec = chooser_.resolved(codec_);
  }
  return options;
}

/// Codes a dense form. O has the entries alone: the zeros of the dense form are in no account.
Result<CodedPart> Bucket::code_dense(size_t at, Stream&& local, const Stream& dense, const EncodeOptions& options) {
  auto container = encode_container(dense.view(), {}, options);
  if (!container) return std::unexpected(container.error());
  MILLRACE_CHECK(container->exact);
  SharedBytes payload = SharedBytes::from(std::move(container->bytes));
  SharedStream sent = SharedStream::from(std::move(local));
  part_is_coded(at, sent.view.count());
  return CodedPart{std::move(payload), std::move(sent)};
}

/// Says whether the part has raw indices and raw values: the container has the sent entries as they are, without a
/// copy.
bool Bucket::goes_plain(const CodecSpec& codec) const {
  const bool raw = codec.index == IndexCodecId::kRaw && codec.value == ValueCodecId::kRaw;
  const bool chosen_dense = !uncompressed_ && chooser_.choice() && chooser_.choice()->chosen.dense;
  return raw && !selected_.dense && !chosen_dense;
}

Result<CodedPart> Bucket::code_plain(size_t at) {
  const protocol::PartLayout& part = parts_[at];
  const auto [first, last] = range_of(selected_.indices, part.begin, part.end);
  const StreamView chosen{dimension_, false, IndexSpan(selected_.indices).subspan(first, last - first),
                          std::span<const float>(selected_.values).subspan(first, last - first)};
  PlainContainer plain = plain_container(chosen, part.begin, part.end - part.begin);
  part_is_coded(at, last - first);
  return CodedPart{plain.bytes, SharedStream::within(plain.bytes, plain.stream)};
}

Stream Bucket::offer() {
  MILLRACE_CHECK(parts_left_ == parts_.size(), parts_left_, parts_.size());
  Stream all = std::exchange(selected_, Stream::empty(dimension_));
  if (all.dense) all = to_sparse(all.view());
  coded_.assign(parts_.size(), 1);
  parts_left_ = 0;
  counters_.entries_sent += all.count();
  counters_.entries_sent_last = all.count();
  return all;
}

void Bucket::skip_part(size_t at) {
  MILLRACE_CHECK(parts_left_ > 0 && coded_[at] == 0, parts_left_, at);
  // Without values after an error of the device, which ends the session.
  if (auto copied = copy_part(at)) {
    give_back(at, std::move(*copied));
    if (residual_.holds_selection()) residual_.forget(range_of_part(at));
  }
  part_is_coded(at, 0);
}

void Bucket::part_is_coded(size_t at, uint64_t entries) {
  coded_[at] = 1;
  entries_in_step_ += entries;
  counters_.entries_sent += entries;
  if (--parts_left_ > 0) return;
  counters_.entries_sent_last = entries_in_step_;
  Stream done = std::exchange(selected_, Stream::empty(dimension_));
  if (!draws()) spare_ = std::move(done);  // else those of the residual are kept, which are larger
}

void Bucket::resolve_encoded(size_t at, const StreamView& selected, const StreamView& decoded, const StreamView& rest) {
  const bool retain = spec_.codec_error == protocol::CodecError::kRetain;
  // What takes memory comes before the books.
  Stream back = Stream::empty(selected.dimension);
  const size_t most = selected.count() + decoded.count();
  back.indices.reserve(most);
  back.values.reserve(most);
  returned_.reserve(returned_.size() + 1);
  const auto put_back = [&](uint64_t index, float value) {
    if (value == 0) return;
    back.indices.push_back(static_cast<uint32_t>(index));
    back.values.push_back(value);
  };
  Cursor chosen(selected);
  Cursor sent(decoded);
  Cursor kept(rest);
  while (chosen.index() != kNoIndex || sent.index() != kNoIndex) {
    const uint64_t index = std::min(chosen.index(), sent.index());
    const bool was_chosen = chosen.index() == index;
    const bool was_sent = sent.index() == index;
    // An entry that the codec added was not taken out by select(): it leaves the residual now.
    const float in_residual = was_chosen || rest.dimension == 0 ? 0.0f : kept.value_at(index);
    const float had = was_chosen ? chosen.value() : in_residual;
    const float gone = was_sent ? sent.value() : 0.0f;
    const double error = static_cast<double>(had) - static_cast<double>(gone);
    if (retain) {
      const float stays = static_cast<float>(error);
      const float back_there = stays - in_residual;
      put_back(index, back_there);
      // f32 may not hold the differences: the values that it rounds off are counted as lost.
      ledger_.lose(at, index, error - static_cast<double>(stays));
      ledger_.lose(at, index,
                   (static_cast<double>(stays) - static_cast<double>(in_residual)) - static_cast<double>(back_there));
    } else {
      put_back(index, -in_residual);
      ledger_.lose(at, index, error);
    }
    if (was_chosen) chosen.advance();
    if (was_sent) sent.advance();
  }
  if (back.count() > 0) returned_.push_back({at, std::move(back)});
}

}  // namespace millrace::worker

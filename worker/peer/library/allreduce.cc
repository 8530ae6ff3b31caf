#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/codec/codec.h"
#include "kernels/stream/shared_stream.h"
#include "millrace/peer.h"
#include "worker/config/option_access.h"
#include "worker/peer/channel/stream_wire.h"
#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/library/group_impl.h"
#include "worker/peer/library/raise.h"

namespace millrace::inline v0::peers {

/// Reads the private members of Algorithm.
struct AllreduceAccess {
  static constexpr uint8_t number_of(const Algorithm& algorithm) { return algorithm.number_; }
  static const std::optional<Amount>& k_of(const Algorithm& algorithm) { return algorithm.k_; }
  static const std::optional<Codec>& quantizer_of(const Algorithm& algorithm) { return algorithm.quantizer_; }
  static const Oktopk& oktopk_of(const Algorithm& algorithm) { return algorithm.oktopk_; }
};

namespace {

template <auto kOurs, auto kInner>
constexpr bool is_same_boundary() {
  return static_cast<uint8_t>(kOurs) == static_cast<uint8_t>(kInner);
}
using InnerBoundaries = peer::AllreduceSettings::Boundaries;
static_assert(is_same_boundary<Boundaries::kAveraged, InnerBoundaries::kAveraged>());
static_assert(is_same_boundary<Boundaries::kPooled, InnerBoundaries::kPooled>());
static_assert(is_same_boundary<Boundaries::kEqual, InnerBoundaries::kEqual>());

constexpr bool names(const Algorithm& algorithm, peer::AlgorithmId id) {
  return AllreduceAccess::number_of(algorithm) == static_cast<uint8_t>(id);
}
static_assert(names(Algorithm::automatic(), peer::AlgorithmId::kAuto));
static_assert(names(Algorithm::dense_ring(), peer::AlgorithmId::kDenseRing));
static_assert(names(Algorithm::dense_recursive_doubling(), peer::AlgorithmId::kDenseRecursiveDoubling));
static_assert(names(Algorithm::dense_rabenseifner(), peer::AlgorithmId::kDenseRabenseifner));
static_assert(names(Algorithm::ssar_recursive_doubling(), peer::AlgorithmId::kSsarRecursiveDoubling));
static_assert(names(Algorithm::ssar_split_allgather(), peer::AlgorithmId::kSsarSplitAllgather));
static_assert(names(Algorithm::dsar_split_allgather(), peer::AlgorithmId::kDsarSplitAllgather));
static_assert(names(Algorithm::sparse_ring(), peer::AlgorithmId::kSparseRing));
static_assert(names(Algorithm::topk_a(0.1), peer::AlgorithmId::kTopkA));
static_assert(names(Algorithm::gtopk(0.1), peer::AlgorithmId::kGtopk));
static_assert(names(Algorithm::gaussian_k(0.1), peer::AlgorithmId::kGaussianK));
static_assert(names(Algorithm::oktopk(0.1), peer::AlgorithmId::kOktopk));
static_assert(names(Algorithm::redsync_allgather(), peer::AlgorithmId::kRedsyncAllgather));

bool takes_k(const peer::AlgorithmInfo& info) { return info.result == peer::ResultKind::kGlobalTopk || info.selects; }

const peer::AlgorithmInfo& numbered_info(uint8_t number) {
  for (const peer::AlgorithmInfo& info : peer::algorithms()) {
    if (static_cast<uint8_t>(info.id) == number) return info;
  }
  refuse(JobErrorCode::kUnsupported,
         "no allreduce has the number " + std::to_string(number) + ": algorithms() lists those of this build");
}

/// Returns the number of entries that an amount of the dimension means.
uint64_t entries_of(const Amount& k, uint64_t dimension) {
  if (k.entries() != 0) return k.entries();
  if (!(k.density() > 0 && k.density() <= 1)) {
    refuse(JobErrorCode::kInvalidArgument, "the algorithm's k: it is a density in (0, 1], or a count of at least 1");
  }
  const auto entries = static_cast<uint64_t>(std::ceil(k.density() * static_cast<double>(dimension)));
  return std::min(entries, dimension);
}

uint64_t inner_k_of(const peer::AlgorithmInfo& info, const AllreduceOptions& options) {
  const std::optional<Amount>& k = AllreduceAccess::k_of(options.algorithm);
  if (k.has_value() != takes_k(info)) {
    refuse(JobErrorCode::kInvalidArgument, std::string(info.name) + (k ? ": it is an exact sum and takes no k"
                                                                       : ": it needs a k, the entries that it keeps"));
  }
  return k ? entries_of(*k, options.dimension) : 0;
}

CodecSpec codec_spec_of(const Codec& codec, const char* option) {
  CodecSpec spec = OptionAccess::spec_of(codec);
  if (spec.automatic) {
    refuse(JobErrorCode::kInvalidArgument, std::string(option) + ": peers have no automatic codec: name one");
  }
  must(validate(spec), JobErrorOrigin::kWorker);
  return spec;
}

peer::AllreduceSettings inner_settings_of(const peer::AlgorithmInfo& info, const AllreduceOptions& options) {
  peer::AllreduceSettings settings;
  settings.dimension = options.dimension;
  settings.k = inner_k_of(info, options);
  if (options.codec) {
    settings.wire.contribution = codec_spec_of(*options.codec, "AllreduceOptions::codec");
    settings.wire.sums = peer::lossless_of(*settings.wire.contribution);
  }
  settings.wire.random = RandomKey::from(options.seed);
  if (const std::optional<Codec>& quantizer = AllreduceAccess::quantizer_of(options.algorithm)) {
    settings.dense_quantizer = codec_spec_of(*quantizer, "the algorithm's quantizer");
  }
  const Oktopk& oktopk = AllreduceAccess::oktopk_of(options.algorithm);
  settings.boundaries_period = oktopk.boundaries_period;
  settings.thresholds_period = oktopk.thresholds_period;
  settings.boundaries = static_cast<InnerBoundaries>(oktopk.boundaries);
  settings.messages_in_flight = oktopk.messages_in_flight;
  settings.balance_ratio = oktopk.balance_ratio;
  return settings;
}

void check_dimension(const char* what, uint64_t found, uint64_t dimension) {
  if (found == dimension) return;
  refuse(JobErrorCode::kInvalidArgument, std::string(what) + " of " + std::to_string(found) +
                                             " values to a sum of dimension " + std::to_string(dimension));
}

[[noreturn]] void refuse_non_finite(const char* what) {
  refuse(JobErrorCode::kNonFinite, std::string(what) + " has NaN or infinity: nothing of it is sent");
}

void check_finite(const char* what, std::span<const float> values) {
  if (!all_finite(values)) refuse_non_finite(what);
}

SharedStream dense_stream_of(std::vector<float>&& values) {
  const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
  return {{.dimension = kept->size(), .dense = true, .indices = {}, .values = *kept},
          kept,
          kept->capacity() * sizeof(float)};
}

SharedStream copied_stream_of(std::span<const float> values) {
  Stream stream;
  stream.dimension = values.size();
  stream.dense = true;
  stream.values.resize(values.size());
  if (!copy_finite(values.data(), stream.values)) refuse_non_finite("the vector");
  return SharedStream::from(std::move(stream));
}

SharedStream sparse_stream_of(SparseEntries&& entries, uint64_t dimension) {
  const auto kept = std::make_shared<const SparseEntries>(std::move(entries));
  const StreamView view{.dimension = dimension, .dense = false, .indices = kept->indices, .values = kept->values};
  if (const Status status = validate(view); !status) {
    refuse(JobErrorCode::kInvalidArgument, "the entries: " + status.error().message);
  }
  check_finite("a list of entries", view.values);
  return {view, kept, kept->indices.capacity() * sizeof(uint32_t) + kept->values.capacity() * sizeof(float)};
}

/// A stream of dimension 0 has no entries.
EntriesView view_of(const StreamView& stream, uint64_t dimension) {
  return {.dimension = dimension, .dense = stream.dense, .indices = stream.indices, .values = stream.values};
}

Reduced public_reduced_of(peer::Reduced&& from) {
  const auto kept = std::make_shared<const peer::Reduced>(std::move(from));
  const uint64_t dimension = kept->sum.view.dimension;
  return {.sum = view_of(kept->sum.view, dimension),
          .returned = view_of(kept->returned.view(), dimension),
          .contributed = kept->contributed,
          .added = view_of(kept->added.view(), dimension),
          .owner = kept};
}

}  // namespace

std::vector<AlgorithmInfo> algorithms() {
  std::vector<AlgorithmInfo> all;
  for (const peer::AlgorithmInfo& info : peer::algorithms()) {
    all.push_back({.number = static_cast<uint8_t>(info.id),
                   .name = info.name,
                   .source = info.source,
                   .takes_k = takes_k(info),
                   .selects = info.selects});
  }
  std::ranges::sort(all, {}, &AlgorithmInfo::number);
  return all;
}

struct Pending::Impl {
  std::shared_ptr<Group::Impl> group;
  peer::Pending<peer::Reduced> pending;
  bool taken = false;
  std::optional<Error> failure = {};  ///< a later wait() has the same error
};

/// Holds an allreduce. A running sum keeps `allreduce` alive, and not the group, which owns the running sum.
struct Allreduce::Impl {
  std::shared_ptr<Group::Impl> group;
  peer::AllreduceSettings settings;
  uint64_t seed = 0;
  std::shared_ptr<peer::Allreduce> allreduce = {};
  std::optional<peer::Pending<peer::Reduced>> last = {};

  bool is_under_way() { return last && !last->test(); }

  /// Refuses a sum that may not start, before its input is looked at.
  void check_free() {
    if (!is_under_way()) return;
    refuse(JobErrorCode::kInvalidArgument,
           "the allreduce's sum before is under way: wait() for it, and make an Allreduce for each tensor");
  }

  std::unique_ptr<Pending::Impl> start(peer::Contribution given) {
    const std::string description = description_of(*allreduce, settings) + " seed=" + std::to_string(seed);
    auto body = [kept = allreduce, given = std::move(given)](peer::Channel& channel) mutable {
      return kept->run(channel, std::move(given));
    };
    auto pending = take(group->inner.start<peer::Reduced>(description, std::move(body)), JobErrorOrigin::kJob);
    last = pending;
    return std::make_unique<Pending::Impl>(Pending::Impl{group, std::move(pending)});
  }
};

Allreduce::Allreduce(Group& group, const AllreduceOptions& options) {
  const peer::AlgorithmInfo& info = numbered_info(AllreduceAccess::number_of(options.algorithm));
  impl_ = std::make_unique<Impl>(Impl{group.impl_, inner_settings_of(info, options), options.seed});
  impl_->allreduce = take(peer::make_allreduce(info.id, impl_->settings), JobErrorOrigin::kWorker);
}

Allreduce::Allreduce(Allreduce&& other) noexcept = default;
Allreduce& Allreduce::operator=(Allreduce&& other) noexcept = default;
Allreduce::~Allreduce() = default;

Pending Allreduce::start(std::span<const float> dense) {
  held(impl_).check_free();
  check_dimension("a vector", dense.size(), held(impl_).settings.dimension);
  return Pending(held(impl_).start(peer::Contribution(copied_stream_of(dense))));
}

Pending Allreduce::start(std::vector<float>&& dense) {
  held(impl_).check_free();
  check_dimension("a vector", dense.size(), held(impl_).settings.dimension);
  check_finite("the vector", dense);
  return Pending(held(impl_).start(peer::Contribution(dense_stream_of(std::move(dense)))));
}

Pending Allreduce::start(SparseEntries entries, std::vector<float> rest) {
  held(impl_).check_free();
  SharedStream own = sparse_stream_of(std::move(entries), held(impl_).settings.dimension);
  if (rest.empty()) return Pending(held(impl_).start(peer::Contribution(std::move(own))));
  check_dimension("a rest", rest.size(), held(impl_).settings.dimension);
  check_finite("the rest", rest);
  return Pending(held(impl_).start(peer::Contribution(std::move(own), dense_stream_of(std::move(rest)))));
}

std::string Allreduce::chosen() { return held(impl_).is_under_way() ? std::string() : held(impl_).allreduce->choice(); }

Pending::Pending(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pending::Pending(Pending&& other) noexcept = default;
Pending& Pending::operator=(Pending&& other) noexcept = default;
Pending::~Pending() = default;

bool Pending::ready() { return held(impl_).taken || held(impl_).pending.test(); }

Reduced Pending::wait() {
  Impl& impl = held(impl_);
  if (!impl.failure) {
    if (impl.taken) refuse(JobErrorCode::kInvalidArgument, "this result was handed out before");
    impl.taken = true;
    Result<peer::Reduced> result = impl.pending.wait();
    if (result) return public_reduced_of(std::move(*result));
    impl.failure = std::move(result.error());
  }
  return public_reduced_of(take(Result<peer::Reduced>(std::unexpected(*impl.failure)), JobErrorOrigin::kJob));
}

std::optional<Reduced> Pending::try_wait(std::chrono::milliseconds timeout) {
  if (!held(impl_).taken && !held(impl_).pending.wait_for(limit_of(timeout))) return std::nullopt;
  return wait();
}

}  // namespace millrace::inline v0::peers

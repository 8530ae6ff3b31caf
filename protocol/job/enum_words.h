#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/job/job_spec.h"

/// The words of the job specification's enums: one table an enum. Sentences, files, the command line and the check of
/// numbers from the wire read them.
namespace millrace::protocol {

template <typename E>
struct EnumWord {
  E value;
  std::string_view word;
};

/// Holds every known enumerator of E with its word. An enum without a table does not compile.
template <typename E>
inline constexpr auto kEnumWords = nullptr;

#define MILLRACE_ENUM_WORDS(E, ...) \
  template <>                       \
  inline constexpr auto kEnumWords<E> = std::to_array<EnumWord<E>>(__VA_ARGS__)

MILLRACE_ENUM_WORDS(Mode, {{Mode::kSynchronous, "synchronous"},
                           {Mode::kBoundedStaleness, "bounded_staleness"},
                           {Mode::kPartial, "partial"},
                           {Mode::kAsynchronous, "asynchronous"}});
MILLRACE_ENUM_WORDS(Combine,
                    {{Combine::kSum, "sum"}, {Combine::kMean, "mean"}, {Combine::kWeightedMean, "weighted_mean"}});
MILLRACE_ENUM_WORDS(Reselect, {{Reselect::kNone, "none"}, {Reselect::kTopK, "topk"}});
MILLRACE_ENUM_WORDS(CodecError, {{CodecError::kRetain, "retain"}, {CodecError::kDrop, "drop"}});
MILLRACE_ENUM_WORDS(NonFinite, {{NonFinite::kRefuse, "refuse"}, {NonFinite::kDropAndCount, "drop"}});
MILLRACE_ENUM_WORDS(Momentum, {{Momentum::kNone, "none"},
                               {Momentum::kCorrection, "correction"},
                               {Momentum::kNesterov, "nesterov"},
                               {Momentum::kNesterovPrinted, "nesterov_printed"}});
MILLRACE_ENUM_WORDS(InitialWeights, {{InitialWeights::kOwn, "own"}, {InitialWeights::kFirst, "first"}});
MILLRACE_ENUM_WORDS(StoreBegin,
                    {{StoreBegin::kZeros, "zeros"}, {StoreBegin::kWorker, "worker"}, {StoreBegin::kSaved, "saved"}});
MILLRACE_ENUM_WORDS(Path, {{Path::kServer, "server"}, {Path::kSwitch, "switch"}});
MILLRACE_ENUM_WORDS(WindowIndexCodec, {{WindowIndexCodec::kRaw, "raw"},
                                       {WindowIndexCodec::kGap, "gap"},
                                       {WindowIndexCodec::kBitmap, "bitmap"},
                                       {WindowIndexCodec::kBloom, "bloom"},
                                       {WindowIndexCodec::kDense, "dense"}});
MILLRACE_ENUM_WORDS(WindowValueCodec, {{WindowValueCodec::kFixed16, "fixed16"},
                                       {WindowValueCodec::kFixed32, "fixed32"},
                                       {WindowValueCodec::kQsgd8, "qsgd8"},
                                       {WindowValueCodec::kQsgd4, "qsgd4"},
                                       {WindowValueCodec::kNone, "none"}});
MILLRACE_ENUM_WORDS(ValueType, {{ValueType::kF32, "f32"}, {ValueType::kF64, "f64"}});
MILLRACE_ENUM_WORDS(WarmUp,
                    {{WarmUp::kNone, "none"}, {WarmUp::kDense, "dense"}, {WarmUp::kExponential, "exponential"}});

#undef MILLRACE_ENUM_WORDS

template <typename E>
concept HasEnumWords = requires { kEnumWords<E>.size(); };

/// Returns the enumerator's word; "unknown" for a number that this build does not know.
template <HasEnumWords E>
constexpr std::string_view enum_word(E value) {
  const auto at = std::ranges::find(kEnumWords<E>, value, &EnumWord<E>::value);
  return at == kEnumWords<E>.end() ? "unknown" : at->word;
}

/// Returns the words of an enum, in the order of its table.
template <HasEnumWords E>
std::vector<std::string> enum_texts() {
  std::vector<std::string> words;
  for (const EnumWord<E>& known : kEnumWords<E>) words.emplace_back(known.word);
  return words;
}

/// Says whether a number that came as an enum of the job specification is one that this build knows.
template <HasEnumWords E>
constexpr bool known(E value) {
  return std::ranges::find(kEnumWords<E>, value, &EnumWord<E>::value) != kEnumWords<E>.end();
}
// Of enums whose numbers are in a registry.
bool known(SelectionId value);
bool known(Optimizer value);
bool known(IndexCodecId value);
bool known(ValueCodecId value);

}  // namespace millrace::protocol

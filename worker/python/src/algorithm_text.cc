#include "worker/python/src/algorithm_text.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "kernels/base/words.h"
#include "worker/config/option_access.h"
#include "worker/peer/collectives/boundaries_text.h"
#include "worker/python/src/option_sets.h"

namespace millrace::python {
namespace {

using peer::AlgorithmId;

[[noreturn]] void refuse_algorithm(const std::string& text, const std::string& fault) {
  raise({ErrorCode::kInvalidArgument, "allreduce '" + text + "': " + fault});
}

peers::AlgorithmInfo algorithm_info_of(const std::string& text, std::string_view name) {
  std::vector<std::string> known;
  for (const peers::AlgorithmInfo& info : peers::algorithms()) {
    if (info.name == name) return info;
    known.emplace_back(info.name);
  }
  refuse_algorithm(text, "no allreduce has the name '" + std::string(name) + "'" + did_you_mean(name, known) +
                             ": millrace.peers.algorithms() lists them");
}

bool is_one_of(const peers::AlgorithmInfo& info, std::initializer_list<AlgorithmId> ids) {
  return std::ranges::any_of(ids, [&](AlgorithmId id) { return static_cast<uint8_t>(id) == info.number; });
}

uint32_t period_of(const std::string& text, std::string_view value) {
  const auto period = number_from_text<uint32_t>(value);
  if (!period || *period == 0) refuse_algorithm(text, "a period is a number of steps, 1 or more");
  return *period;
}

void set_parameter(AlgorithmChoice& choice, const std::string& text, std::string_view name, std::string_view value) {
  const bool is_oktopk = is_one_of(choice.info, {AlgorithmId::kOktopk});
  if (is_oktopk && name == "thresholds_period") {
    choice.oktopk.thresholds_period = period_of(text, value);
  } else if (is_oktopk && name == "boundaries_period") {
    choice.oktopk.boundaries_period = period_of(text, value);
  } else if (is_oktopk && name == "boundaries") {
    const auto& known = peer::boundaries_names();
    if (std::ranges::find(known, value) == known.end()) {
      refuse_algorithm(text, "boundaries are averaged, pooled or equal");
    }
    choice.oktopk.boundaries = static_cast<peers::Boundaries>(peer::boundaries_of(std::string(value)));
  } else if (name == "quantizer" &&
             is_one_of(choice.info, {AlgorithmId::kSsarSplitAllgather, AlgorithmId::kDsarSplitAllgather})) {
    auto codec = codec_from_text(value);
    if (!codec) raise(codec.error());
    choice.quantizer = *codec;
  } else {
    refuse_algorithm(text, "it has no parameter '" + std::string(name) + "'");
  }
}

}  // namespace

AlgorithmChoice algorithm_from_text(const std::string& text) {
  const std::vector<std::string_view> words = split(text, ':');
  AlgorithmChoice choice{.info = algorithm_info_of(text, words.front()), .k = {}, .oktopk = {}, .quantizer = {}};
  for (size_t at = 1; at < words.size(); ++at) {
    const std::string_view word = words[at];
    if (const size_t equals = word.find('='); equals != std::string_view::npos) {
      set_parameter(choice, text, word.substr(0, equals), word.substr(equals + 1));
      continue;
    }
    if (!choice.info.takes_k) refuse_algorithm(text, "it is an exact sum and takes no k");
    auto k = selection_from_text("topk:" + std::string(word));
    if (!k || choice.k) refuse_algorithm(text, "its k is one density in (0, 1], as 0.01, or one count, as 1000");
    choice.k = *k;
  }
  return choice;
}

peers::Algorithm algorithm_of(const AlgorithmChoice& choice) {
  std::optional<Amount> k;
  if (choice.k) k = choice.k->k != 0 ? Amount::count(choice.k->k) : Amount(choice.k->density);
  if (choice.info.takes_k && !k) {
    refuse_algorithm(std::string(choice.info.name), "it needs a k, as " + std::string(choice.info.name) + ":0.01");
  }
  std::optional<Codec> quantizer;
  if (choice.quantizer) quantizer = OptionAccess::codec_of(*choice.quantizer);
  if (is_one_of(choice.info, {AlgorithmId::kOktopk})) return peers::Algorithm::oktopk(*k, choice.oktopk);
  if (is_one_of(choice.info, {AlgorithmId::kSsarSplitAllgather})) {
    return peers::Algorithm::ssar_split_allgather(quantizer);
  }
  if (is_one_of(choice.info, {AlgorithmId::kDsarSplitAllgather})) {
    return peers::Algorithm::dsar_split_allgather(quantizer);
  }
  return peers::Algorithm::numbered(choice.info.number, k);
}

void set_algorithm(training::OptimizerOptions& options, const AlgorithmChoice& choice) {
  options.algorithm = static_cast<AlgorithmId>(choice.info.number);
  options.thresholds_period = choice.oktopk.thresholds_period;
  options.boundaries_period = choice.oktopk.boundaries_period;
  options.boundaries = static_cast<peer::Boundaries>(choice.oktopk.boundaries);
  options.quantizer = choice.quantizer;
  if (choice.k) options.job.select = OptionAccess::selection_of(*choice.k);
}

}  // namespace millrace::python

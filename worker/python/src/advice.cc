#include "worker/python/src/advice.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "worker/peer/algorithms/gradient_speeds.h"
#include "worker/peer/algorithms/planner.h"
#include "worker/peer/algorithms/summing_speeds.h"
#include "worker/python/src/interpreter.h"
#include "worker/python/src/option_sets.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

constexpr double kBitsOfByte = 8;

/// Describes the exchange and the machines; the names are those of the flags of `millrace advise`.
struct Question {
  peer::SumShape shape;
  uint32_t shards = 1;
  double link_rate = 0;  ///< bits a second
  double latency_s = 0;
  std::string select;
  std::string codec;
  bool exact = false;
};

struct Answer {
  std::vector<peer::PlannedCost> ranking;  ///< servers among them
  peer::PlannedCost servers;               ///< the exact sum through shards
  peer::PlannedCost servers_dense;         ///< the same with every entry
};

template <typename T>
T taken(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

/// Measures this machine's speeds for the question, as the command does where no flag gives them.
peer::MachineSpeeds speeds_of(const Question& question) {
  const SelectionId select = taken(selection_by_name(question.select));
  std::optional<CodecSpec> codec;
  if (question.codec != "raw") codec = taken(codec_from_text(question.codec));
  if (codec && codec->automatic)
    raise(Error{ErrorCode::kInvalidArgument, "auto chooses by the gradient at run time; name a codec, as gap+raw"});
  const peer::KernelSpeeds kernels = peer::measure_kernel_speeds(&monotonic_now_ns);
  const peer::CodingSpeeds codings = taken(peer::measure_codings(codec, question.shape, &monotonic_now_ns));
  peer::MachineSpeeds speeds{.latency_s = question.latency_s,
                             .byte_s = kBitsOfByte / question.link_rate,
                             .add_entry_s = kernels.add_entry_s,
                             .add_value_s = kernels.add_value_s,
                             .select = {},
                             .contribution = codings.contribution,
                             .sums = codings.sums};
  if (select != SelectionId::kNone)
    speeds.select = taken(peer::measure_selections(select, question.shape, &monotonic_now_ns));
  return speeds;
}

Answer answer_of(const Question& question) {
  const peer::MachineSpeeds speeds = speeds_of(question);
  peer::MachineSpeeds of_dense = speeds;
  of_dense.select = {};
  peer::SumShape dense = question.shape;
  dense.k = dense.dimension;
  const peer::ServerShape servers{.shards = question.shards};
  return {peer::rank_with_servers(question.shape, speeds,
                                  question.exact ? peer::Wanted::kExactSum : peer::Wanted::kAnyResult, question.shards),
          peer::planned_server_cost(servers, question.shape, speeds),
          peer::planned_server_cost(servers, dense, of_dense)};
}

/// Returns (algorithm, result, dense, seconds, seconds of the bytes on the link).
py::tuple record_of_cost(const peer::PlannedCost& cost) {
  const char* const result = cost.info.result == peer::ResultKind::kExactSum ? "exact_sum" : "global_topk";
  return py::make_tuple(std::string(cost.info.name), result, cost.info.dense_only, cost.total_s(), cost.transfer_s);
}

/// Returns (entries, reason, ranking, servers, servers with every entry).
py::tuple advise(const Question& question) {
  const Answer answer = without_lock([&] { return answer_of(question); });
  py::list ranking;
  for (const peer::PlannedCost& cost : answer.ranking) ranking.append(record_of_cost(cost));
  return py::make_tuple(question.shape.k, peer::reason_of(answer.ranking, question.shape), ranking,
                        record_of_cost(answer.servers), record_of_cost(answer.servers_dense));
}

}  // namespace

void bind_advice(py::module_& module) {
  using py::arg;
  module.def(
      "advise",
      [](uint64_t dimension, double density, uint32_t ranks, uint32_t shards, double link_rate, double latency_s,
         const std::string& select, const std::string& codec, bool exact) {
        const auto k = static_cast<uint64_t>(std::llround(density * static_cast<double>(dimension)));
        const uint64_t entries = std::clamp<uint64_t>(k, 1, dimension);
        return advise({.shape = {.dimension = dimension, .k = entries, .ranks = ranks},
                       .shards = shards,
                       .link_rate = link_rate,
                       .latency_s = latency_s,
                       .select = select,
                       .codec = codec,
                       .exact = exact});
      },
      arg("dimension"), arg("density"), arg("ranks"), arg("shards"), arg("link_rate"), arg("latency"), arg("select"),
      arg("codec"), arg("exact"));
}

}  // namespace millrace::python

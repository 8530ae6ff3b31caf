#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/contribution.h"
#include "worker/peer/collectives/recursive_doubling.h"

/// SSAR_Recursive_double: sparse recursive doubling. In step i ranks 2^i apart exchange their sums so far, and each
/// adds the two; after log2 P steps all have the sum. Latency-optimal: for little data.
///
/// Any P   let F be 2^floor(log2 P): a rank r >= F gives its entries to rank r - F, and gets the sum from it.
/// Bits    both partners add the lower rank's sum first: the same bits.
/// Bytes   a rank: log2 P messages, of k to min(N, 2^i k) entries each.
/// Source  [SparCML19, 5.3.1].
namespace millrace::peer {
namespace {

class SsarRecursiveDoubling final : public Allreduce {
 public:
  explicit SsarRecursiveDoubling(const AllreduceSettings& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kSsarRecursiveDoubling); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    Result<CodedContribution> coded = code_contribution(given, settings_, channel);
    if (!coded) co_return std::unexpected(coded.error());
    given.own = {};
    given.rest = {};
    Packed contribution{std::move(coded->packet), std::move(coded->sent)};
    Result<SharedStream> sum = co_await recursive_doubling(channel, std::move(contribution), settings_);
    if (!sum) co_return std::unexpected(sum.error());
    co_return Reduced{std::move(*sum), std::move(coded->returned), {}, std::move(coded->added)};
  }

 private:
  AllreduceSettings settings_;
};

void cost_of_ssar_doubling(CostChain& chain) {
  chain.select(chain.speeds().select.callers_s);
  add_doubling(chain, [&](double draws) { chain.send_sum(draws); }, [&](double draws) { chain.add_sum(draws, 1, 2); });
}

}  // namespace

AlgorithmEntry ssar_recursive_doubling_entry() {
  return {.info = {.id = AlgorithmId::kSsarRecursiveDoubling,
                   .name = "ssar_recursive_doubling",
                   .source = "[SparCML19, 5.3.1]",
                   .result = ResultKind::kExactSum},
          .make = make_of<SsarRecursiveDoubling>,
          .cost = cost_of_ssar_doubling};
}

}  // namespace millrace::peer

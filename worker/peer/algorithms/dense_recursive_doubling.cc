#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/dense_vector.h"
#include "worker/peer/collectives/recursive_doubling.h"

/// Recursive doubling of dense vectors: in step i ranks 2^i apart exchange their sums. Latency-optimal.
///
/// Any P   let F be 2^floor(log2 P): a rank r >= F gives its vector to rank r - F, and gets the sum from it.
/// Bits    both partners add the lower rank's sum first: the same bits.
/// Bytes   a rank: log2 P messages of N values; one more, where P is no power of two.
/// Source  [Thakur05]; [SparCML19, 5.3.1].
namespace millrace::peer {
namespace {

class DenseRecursiveDoubling final : public Allreduce {
 public:
  explicit DenseRecursiveDoubling(const AllreduceSettings& settings) : settings_(without_codecs(settings)) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kDenseRecursiveDoubling); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    const Result<SharedStream> dense = dense_vector(given, settings_);
    if (!dense) co_return std::unexpected(dense.error());
    Result<Packed> packed = pack(*dense, settings_.wire.contribution, {});
    if (!packed) co_return std::unexpected(packed.error());
    Result<SharedStream> sum = co_await recursive_doubling(channel, std::move(*packed), settings_);
    if (!sum) co_return std::unexpected(sum.error());
    co_return Reduced{std::move(*sum), Stream::empty(settings_.dimension), {}};
  }

 private:
  AllreduceSettings settings_;
};

void cost_of_dense_doubling(CostChain& chain) {
  add_doubling(
      chain, [&](double) { chain.send(chain.n() * CostChain::kValueBytes); },
      [&](double) { chain.add_dense(2 * chain.n()); });
}

}  // namespace

AlgorithmEntry dense_recursive_doubling_entry() {
  return {.info = {.id = AlgorithmId::kDenseRecursiveDoubling,
                   .name = "dense_recursive_doubling",
                   .source = "[Thakur05]",
                   .result = ResultKind::kExactSum,
                   .dense_only = true},
          .make = make_of<DenseRecursiveDoubling>,
          .cost = cost_of_dense_doubling};
}

}  // namespace millrace::peer

#include <array>
#include <bit>

#include "kernels/reduce/reduce.h"
#include "kernels/select/top_k.h"
#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/contribution.h"
#include "worker/peer/collectives/local_selection.h"

/// gTopk: a binomial tree in which each node adds a child's entries to its own, and keeps the k largest of the sum. The
/// root's entries go back down the tree. The entries that a node drops are sums, which may have several ranks' parts.
/// The node returns them (Returns::kSums); a leaf returns the changes of its codec.
///
/// Any P     a rank without a child in a step waits for the next one.
/// Bits      the lower rank's entries are added first; all have the root's.
/// Bytes     a rank: one message up and at most log2 P down, of k entries each; the root receives log2 P.
/// Result    not the k largest of the sum. An index that is small in each part of the tree, and large in all together,
///           is dropped on the way. All entries that ranks selected are handed over (Reduced::contributed).
/// Source    [GTopk19]; [OkTopk22, 2]
namespace millrace::peer {
namespace {

constexpr uint32_t kUp = 1;
constexpr uint32_t kDown = 2;

class Gtopk final : public Allreduce {
 public:
  explicit Gtopk(const AllreduceSettings& settings) : settings_(settings), selection_(SelectionId::kTopK, settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kGtopk); }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    Result<SharedStream> selected = selection_.take(given.own);
    if (!selected) co_return std::unexpected(selected.error());
    Reduced out{{}, {}, {selected->view.indices.begin(), selected->view.indices.end()}};
    const Contribution mine{std::move(*selected),
                            fills_from_rest(settings_.wire) ? std::move(given.own) : SharedStream{}};
    given.own = {};
    SharedStream sum = mine.own;
    const uint32_t rank = channel.rank();
    std::vector<Stream> returned;
    uint32_t bit = 1;
    for (; bit < channel.size() && (rank & bit) == 0; bit *= 2) {
      if (bit >= channel.size() - rank) continue;
      const Packet packet = co_await channel.receive(rank + bit, kUp);
      if (Status status = add(packet, channel, sum, returned); !status) co_return std::unexpected(status.error());
    }
    // A rank that has added sends a sum, which no codec changes: it returns dropped sums alone.
    if (sum.owner != mine.own.owner) out.returns = Returns::kSums;
    if (rank != 0) {
      Result<Packet> up = packed_up(channel, mine, sum, returned, out.contributed);
      if (!up) co_return std::unexpected(up.error());
      channel.send(rank - bit, kUp, std::move(*up));
    }
    Packet packet;
    if (rank != 0) {
      packet = co_await channel.receive(rank - bit, kDown);
      Result<SharedStream> all = unpack(packet, settings_.dimension);
      if (!all) co_return std::unexpected(all.error());
      sum = std::move(*all);
    } else {
      Result<Packed> packed = pack(sum, settings_.wire.sums, {}, 0, channel.bodies());
      if (!packed) co_return std::unexpected(packed.error());
      packet = std::move(packed->packet);
    }
    for (bit /= 2; bit > 0; bit /= 2) {
      if (bit < channel.size() - rank) channel.send(rank + bit, kDown, packet);
    }
    out.sum = std::move(sum);
    Result<Stream> back = all_of(std::move(returned));
    if (!back) co_return std::unexpected(back.error());
    out.returned = std::move(*back);
    co_return std::move(out);
  }

 private:
  /// sum = the k largest of sum and what `packet` holds; the rest goes into `returned`.
  Status add(const Packet& packet, Channel& channel, SharedStream& sum, std::vector<Stream>& returned) const {
    const Result<SharedStream> theirs = unpack(packet, settings_.dimension);
    if (!theirs) return std::unexpected(theirs.error());
    const std::array<StreamView, 2> both{sum.view, theirs->view};
    channel.charge(reduce_time(both[0].count() + both[1].count()));
    const Result<Stream> added = sum_two(both[0], both[1]);
    if (!added) return std::unexpected(added.error());
    IndexBuffer positions;
    if (Status status = select_top_k_nonzero(added->values, settings_.k, positions); !status) return status;
    Partition cut = partition_at(added->view(), positions);
    if (cut.dropped.count() > 0) returned.push_back(std::move(cut.dropped));
    sum = SharedStream::from(std::move(cut.kept));
    return {};
  }

  /// Packs the message to the parent: a sum, losslessly; a contribution to which nothing was added, in its codec's
  /// form.
  Result<Packet> packed_up(Channel& channel, const Contribution& mine, const SharedStream& sum,
                           std::vector<Stream>& returned, IndexBuffer& contributed) const {
    if (sum.owner == mine.own.owner) {
      Result<CodedContribution> coded = code_contribution(mine, settings_, channel);
      if (!coded) return std::unexpected(coded.error());
      if (coded->returned.count() > 0) returned.push_back(std::move(coded->returned));
      if (coded->added.count() > 0) contributed = merged_indices(contributed, coded->added.indices);
      return std::move(coded->packet);
    }
    Result<Packed> packed = pack(sum, settings_.wire.sums, {}, 0, channel.bodies());
    if (!packed) return std::unexpected(packed.error());
    return std::move(packed->packet);
  }

  Result<Stream> all_of(std::vector<Stream>&& returned) const {
    if (returned.empty()) return Stream::empty(settings_.dimension);
    if (returned.size() == 1) return std::move(returned.front());
    std::vector<StreamView> views;
    for (const Stream& one : returned) views.push_back(one.view());
    Result<Stream> all = sum_many(views);
    if (!all || !all->dense) return all;
    return to_sparse(all->view());
  }

  AllreduceSettings settings_;
  LocalSelection selection_;
};

/// Up the tree, where each node adds and selects, and down.
void cost_of_gtopk(CostChain& chain) {
  chain.select(chain.speeds().select.topk_s);
  for (uint32_t bit = 1; bit < chain.ranks(); bit *= 2) {
    chain.send_entries(chain.k(), chain.speeds().sums);
    chain.add_sparse(2 * chain.k());
    chain.send_entries(chain.k(), chain.speeds().sums);
  }
}

}  // namespace

AlgorithmEntry gtopk_entry() {
  return {.info = {.id = AlgorithmId::kGtopk,
                   .name = "gtopk",
                   .source = "[GTopk19]; [OkTopk22, 2]",
                   .result = ResultKind::kGlobalTopk,
                   .selects = true,
                   .needs_sum = true},
          .make = make_of<Gtopk>,
          .cost = cost_of_gtopk};
}

}  // namespace millrace::peer

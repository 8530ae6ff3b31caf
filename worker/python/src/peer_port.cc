#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "monitoring/http/secure/http_security.h"
#include "worker/peer/library/group_impl.h"
#include "worker/python/src/python_peers.h"
#include "worker/training/peers/peer_port.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

using training::PeerProgress;

constexpr uint64_t kBytesOfDenseEntry = 4;

void add_figures(const SumFigures& of_sum, PeerProgress& all) {
  all.dense_bytes += kBytesOfDenseEntry * of_sum.dimension * of_sum.steps;
  all.counts.entries += of_sum.counts.entries;
  all.counts.sum_entries += of_sum.counts.sum_entries;
  all.counts.residual_norm = std::hypot(all.counts.residual_norm, of_sum.counts.residual_norm);
}

}  // namespace

/// The port is destroyed first: its threads read the others.
struct PythonPeerPort::State {
  /// Returns the figures of all sums; those of closed ones, and of sums that a call waits for, as they were.
  PeerProgress progress() {
    for (size_t at = 0; at < sums.size(); ++at) {
      if (auto now = sums[at]()) figures[at] = *std::move(now);
    }
    PeerProgress all;
    for (const SumFigures& one : figures) add_figures(one, all);
    const peer::Traffic traffic = group->traffic();
    all.traffic = traffic;
    const std::lock_guard lock(mutex);
    all.steps = steps;
    all.counts.compute_s = compute_s;
    all.counts.waiting_s = wait_s;
    return all;
  }

  std::shared_ptr<peer::PeerGroup> group;
  std::shared_ptr<GroupTimeline> timeline = {};
  std::vector<std::function<std::optional<SumFigures>()>> sums = {};
  std::vector<SumFigures> figures = {};  ///< as the last answer had them
  std::mutex mutex;                      ///< guards the next three
  uint64_t steps = 0;
  double compute_s = 0;
  double wait_s = 0;
  std::unique_ptr<training::PeerPort> port = {};
};

PythonPeerPort::PythonPeerPort(const PythonGroup& group, const py::list& sums, const std::string& name,
                               const WorkerOptions& me)
    : state_([&] {
        auto state = std::make_shared<State>();
        state->group = peers::GroupAccess::inner_of(*group.held());
        state->timeline = group.timeline();
        for (const py::handle sum : sums) state->sums.push_back(sum.cast<const PythonGradientSum&>().figures());
        state->figures.resize(state->sums.size());
        const WorkerConfig& config = me.config();
        auto protection = monitoring::open_http_protection(
            config.http,
            {.tls = config.http_tls, .token_file = config.http_token_file, .insecure = config.http_insecure},
            monitoring::HttpOptionNames::kFields);
        if (!protection) raise(protection.error());
        training::PeerPort::Source source;
        source.progress = [at = state.get()] { return at->progress(); };
        source.unhealthy = [at = state.get()]() -> std::optional<std::string> {
          const auto ended = at->group->failure();
          return ended ? std::optional(ended->error.message) : std::nullopt;
        };
        source.spans = &state->timeline->spans;
        auto port = without_lock([&] {
          return training::PeerPort::start(
              {.address = config.http, .flag = "http", .protection = *std::move(protection)},
              {.job = name, .rank = group.rank(), .ranks = group.size(), .path = training::ExchangePath::kPeers},
              std::move(source));
        });
        if (!port) raise(port.error());
        state->port = *std::move(port);
        return state;
      }()) {}

uint16_t PythonPeerPort::port() const { return state_.held("the port")->port->port(); }

void PythonPeerPort::count_step(double compute_s, double wait_s) {
  const std::shared_ptr<State> state = state_.held("the port");
  state->port->step_done(compute_s + wait_s);
  const std::lock_guard lock(state->mutex);
  ++state->steps;
  state->compute_s += compute_s;
  state->wait_s += wait_s;
}

}  // namespace millrace::python

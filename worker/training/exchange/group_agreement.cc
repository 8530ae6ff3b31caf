#include "worker/training/exchange/group_agreement.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/peer/collectives/allgather.h"

namespace millrace::training {

using program::ErrorPlace;

namespace {

using RankReports =
    std::vector<std::vector<uint32_t>>;  ///< by rank: nothing, or an error's code and the bytes of its sentence

constexpr size_t kSentenceBytesMax = 2'000;

/// Marks the sentence of a rank that ended the group by end_group(): ranks get the error's code and sentence alone.
constexpr std::string_view kEnds = " ends: ";

peer::Task<Result<RankReports>> gather_reports(peer::Channel& channel, std::vector<uint32_t> own) {
  constexpr uint32_t kFirstTag = 0;
  co_return co_await peer::allgather_numbers<uint32_t>(channel, std::move(own), kFirstTag);
}

Error error_of(const std::vector<uint32_t>& said) {
  Error error{static_cast<ErrorCode>(said.front()), ""};
  for (const uint32_t byte : std::span(said).subspan(1)) error.message += static_cast<char>(byte);
  return error;
}

peer::Task<Result<RankReports>> give_up(peer::Channel& /*channel*/, Error error) {
  co_return std::unexpected(std::move(error));
}

}  // namespace

Status agree(peer::PeerGroup& group, std::string what, const Status& own) {
  std::vector<uint32_t> said;
  if (!own) {
    said.push_back(static_cast<uint32_t>(own.error().code));
    for (const char byte : own.error().message.substr(0, kSentenceBytesMax)) said.push_back(static_cast<uint8_t>(byte));
  }
  auto pending = group.start<RankReports>(
      std::move(what), [said = std::move(said)](peer::Channel& channel) { return gather_reports(channel, said); });
  if (!pending) return std::unexpected(pending.error());
  const Result<RankReports> all = pending->wait();
  if (!all) return std::unexpected(all.error());
  const auto first = std::ranges::find_if(*all, [](const auto& one) { return !one.empty(); });
  if (first == all->end()) return {};
  Error error = error_of(*first);
  if (!std::ranges::all_of(*all, [&](const auto& one) { return one == *first; })) {
    error.message = "rank " + std::to_string(first - all->begin()) + ": " + error.message;
  }
  return std::unexpected(std::move(error));
}

std::unexpected<Error> end_group(peer::PeerGroup& group, Error error) {
  error.message = "rank " + std::to_string(group.rank()) + std::string(kEnds) + error.message;
  auto pending = group.start<RankReports>("end", [error](peer::Channel& channel) { return give_up(channel, error); });
  if (pending) static_cast<void>(pending->wait());
  return std::unexpected(std::move(error));
}

ErrorPlace place_of(const peer::PeerGroup& group, ExchangePath path) {
  const auto failure = group.failure();
  if (!failure) return ErrorPlace::kOwn;
  const bool of_servers = path == ExchangePath::kServers && failure->error.message.contains(kEnds);
  return of_servers ? ErrorPlace::kJoining : ErrorPlace::kRanks;
}

}  // namespace millrace::training

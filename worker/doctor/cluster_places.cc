#include "worker/doctor/cluster_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "protocol/address/host_port.h"

namespace millrace::doctor {
namespace {

constexpr size_t kPlacesMax = 1'024;

std::string name_of(uint32_t shard) { return fmt::format("shard {}", shard); }

class Places {
 public:
  ShardPlace* at_http(const std::string& http) {
    const auto found = std::ranges::find(places_, http, &ShardPlace::http);
    return http.empty() || found == places_.end() ? nullptr : &*found;
  }
  ShardPlace* of_number(uint32_t number) {
    const auto found = std::ranges::find(places_, std::optional(number), &ShardPlace::number);
    return found == places_.end() ? nullptr : &*found;
  }
  /// Adds a place, unless there are as many as a cluster has shards: answers are other processes' words.
  void add(ShardPlace place) {
    if (places_.size() < kPlacesMax) places_.push_back(std::move(place));
  }

  /// Adds a shard by its own status.
  void take(const cluster_status::ShardAnswer& answer) {
    const uint32_t number = answer.said.shard;
    if (of_number(number) != nullptr && at_http(answer.http) != nullptr) return;
    if (ShardPlace* place = at_http(answer.http)) {
      // Of --servers: the address there is the one that workers use.
      place->number = number;
      place->subject = name_of(number);
      place->http_is_guessed = false;
    } else if (ShardPlace* known = of_number(number); known != nullptr && known->http.empty()) {
      known->http = answer.http;
      known->http_trouble.clear();
    } else {
      add({.subject = name_of(number),
           .number = number,
           .address = std::string(protocol::without_tcp(answer.said.address)),
           .http = answer.http});
    }
  }

  std::vector<ShardPlace> take_all() {
    std::ranges::stable_sort(places_, {}, [](const ShardPlace& place) { return place.number.value_or(UINT32_MAX); });
    return std::move(places_);
  }

 private:
  std::vector<ShardPlace> places_;
};

/// Returns the address of a shard that another one knows; empty: none does.
std::string address_of(const cluster_status::Answers& answers, uint32_t number) {
  for (const cluster_status::ShardAnswer& answer : answers.shards) {
    const auto peer = std::ranges::find(answer.said.peers, number, &PeerShardStatus::shard);
    if (peer != answer.said.peers.end()) return std::string(protocol::without_tcp(peer->address));
  }
  return "";
}

}  // namespace

std::vector<ShardPlace> join_places(const TableFacts& table, const std::vector<std::string>& servers,
                                    const cluster_status::Answers& answers) {
  Places places;
  for (const TableFacts::Shard& shard : table.shards) {
    if (shard.state != "ready" && shard.state != "draining") continue;  // judge_table() has its problem
    places.add({.subject = name_of(shard.number),
                .number = shard.number,
                .state = shard.state,
                .address = shard.address,
                .http = shard.http,
                .http_trouble = shard.http_trouble});
  }
  for (const std::string& server : servers) {
    const std::string address(protocol::without_tcp(server));
    const auto http = cluster_status::http_address_of(server);
    if (http && places.at_http(*http) != nullptr) continue;
    places.add({.subject = address, .address = address, .http = http.value_or(""), .http_is_guessed = true});
  }
  for (const cluster_status::ShardAnswer& answer : answers.shards) places.take(answer);
  for (const auto& [number, why] : answers.why_missing) {
    if (places.of_number(number) == nullptr)
      places.add(
          {.subject = name_of(number), .number = number, .address = address_of(answers, number), .http_trouble = why});
  }
  const auto add_port = [&places](const std::string& http) {
    if (places.at_http(http) == nullptr) places.add({.subject = http, .http = http});
  };
  for (const auto& [http, why] : answers.unanswered) add_port(http);
  for (const auto& [http, said] : answers.said) add_port(http);
  return places.take_all();
}

}  // namespace millrace::doctor

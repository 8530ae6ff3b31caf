#include "worker/doctor/cluster_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/words.h"
#include "protocol/address/host_port.h"
#include "protocol/table/etcd_address.h"

namespace millrace::doctor {
namespace {

constexpr TimeNs kSkewMax = kNsPerS;
/// A step takes a round trip at least: with more than this most jobs wait for the network.
constexpr TimeNs kRoundTripSlow = 10 * kNsPerMs;
/// The table's reading time from which joins and recoveries are slow.
constexpr TimeNs kTableSlow = 100 * kNsPerMs;
constexpr double kRateSlow = 100e6;  ///< bits a second
/// A transfer of fewer round trips than this shows TCP's beginning, and not the path's rate.
constexpr TimeNs kRoundTripsOfTransfer = 10;
constexpr double kMemoryFull = 0.9;

double in_ms(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerMs); }

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// Returns the host of "host:port"; empty: it is no address.
std::string host_of(const std::string& address) {
  const auto at = protocol::parse_host_port(protocol::without_tcp(address));
  return at ? at->host : "";
}

/// Returns MAJOR of "millrace MAJOR.MINOR.PATCH"; nothing: it is another text.
std::optional<uint32_t> major_of(std::string_view software) {
  constexpr std::string_view kName = "millrace ";
  if (!software.starts_with(kName)) return std::nullopt;
  const std::vector<std::string_view> numbers = split(software.substr(kName.size()), '.');
  constexpr size_t kNumbers = 3;
  if (numbers.size() != kNumbers ||
      !std::ranges::all_of(numbers, [](std::string_view text) { return number_from_text<uint32_t>(text).has_value(); }))
    return std::nullopt;
  return number_from_text<uint32_t>(numbers[0]);
}

Check judge_name(const std::string& subject, const NameFacts& name) {
  if (!name.addresses) {
    return problem("name", subject, fmt::format("'{}': {}", name.host, name.addresses.error().message),
                   fmt::format("add {} to DNS or to /etc/hosts here, or start the shard with an --advertise that this "
                               "host knows",
                               name.host));
  }
  Check check{"name", subject, Verdict::kOk, fmt::format("{} is {}", name.host, joined(*name.addresses))};
  if (protocol::is_loopback_host(name.host) || !std::ranges::any_of(*name.addresses, protocol::is_loopback_host))
    return check;
  check.verdict = Verdict::kWarning;
  check.change = fmt::format(
      "remove the name {} from the line of /etc/hosts with an address of loopback: a server there listens where no "
      "other host reaches it",
      name.host);
  return check;
}

/// Returns whether the table is an etcd on another host.
bool is_etcd_elsewhere(const std::string& table) {
  if (!protocol::is_etcd_address(table)) return false;
  const auto etcd = protocol::parse_etcd_address(table);
  return etcd && std::ranges::any_of(etcd->endpoints, [](const std::string& endpoint) {
           return !protocol::is_loopback_host(host_of(endpoint));
         });
}

Check judge_mtu(const std::string& subject, const MtuFacts& facts) {
  Check check{"mtu", subject, Verdict::kOk, "a packet of 1500 bytes is answered"};
  if (facts.large == DatagramOutcome::kArrived) return check;
  if (facts.large == DatagramOutcome::kTooLarge) {
    check.verdict = Verdict::kWarning;
    check.found = facts.known_mtu == 0 ? "a packet of 1500 bytes is too large for the path"
                                       : fmt::format("the path takes packets of {} bytes", facts.known_mtu);
    check.change = fmt::format(
        "give jobs of path switch --switch-packet-bytes {}; or raise the MTU on the whole path, if its networks have "
        "more",
        facts.known_mtu > facts.head_bytes ? fmt::format("{}", facts.known_mtu - facts.head_bytes)
                                           : fmt::format("of the path's MTU less {}", facts.head_bytes));
  } else if (facts.small == DatagramOutcome::kArrived) {
    check.verdict = Verdict::kProblem;
    check.found = "a small packet arrives, and one of 1500 bytes is lost without a word";
    check.change =
        "give the interfaces of both hosts the MTU that the path has (ip link set dev NAME mtu N), or let routers' "
        "ICMP through: connections hang at the first large message";
  } else {
    check.verdict = Verdict::kNotChecked;
    check.found = "its host does not refuse datagrams to a closed port: a firewall drops them, or the answers";
  }
  return check;
}

Check judge_handshake(const ShardFacts& facts, const OwnFacts& own) {
  const std::string& subject = facts.place.subject;
  const HandshakeFacts& said = *facts.handshake;
  if (said.mechanism == PortMechanism::kOther) {
    return problem("keys", subject, fmt::format("{} accepts, and does not speak as a shard", facts.place.address),
                   "give the address of the shard's --listen: another program has this port; or look at that shard's "
                   "log, if it has this port and hangs");
  }
  Check check{"keys", subject, Verdict::kOk, "it takes no keys"};
  if (said.mechanism == PortMechanism::kNull && own.has_keys) {
    check.verdict = Verdict::kProblem;
    check.change = "start the servers with --key and --allowed-keys, or workers without --key";
  } else if (said.mechanism == PortMechanism::kNull && !protocol::is_loopback_host(host_of(facts.place.address))) {
    check.verdict = Verdict::kWarning;
    check.change =
        "make keys (millrace keys new) and start the servers with --key and --allowed-keys: each process that reaches "
        "this port may join, read and end every job";
  }
  if (said.mechanism == PortMechanism::kNull) return check;
  check.found = said.done ? "the keys of both sides are right" : said.trouble;
  if (said.done) return check;
  if (!own.has_keys) {
    check.verdict = Verdict::kNotChecked;
    check.found = "it wants a key";
    check.change = "give --key and --server-key with right files, as a worker has them";
    return check;
  }
  check.verdict = Verdict::kProblem;
  check.change =
      "put this key's .pub file into the servers' --allowed-keys and send them SIGHUP; compare --server-key with the "
      "servers' --key (millrace keys public FILE)";
  return check;
}

Check judge_version(const std::string& subject, const std::string& said, const std::string& own) {
  Check check{"version", subject, Verdict::kOk, said.empty() ? "its status has no version" : said};
  if (said == own) return check;
  if (said.empty()) {
    check.verdict = Verdict::kNotChecked;
    return check;
  }
  check.verdict = major_of(said) && major_of(said) == major_of(own) ? Verdict::kWarning : Verdict::kProblem;
  check.change =
      fmt::format("this host has {}: install one version on all hosts (deploy/OPERATING.md, \"Upgrade\")", own);
  return check;
}

/// Judges the other shards' connections to this one, as its status has them.
std::optional<Check> judge_neighbours(const std::string& subject, const StatusReport& said) {
  if (said.peers.empty()) return std::nullopt;
  std::vector<std::string> unheard;
  for (const PeerShardStatus& peer : said.peers) {
    if (!peer.heard) unheard.push_back(fmt::format("{} ({})", peer.shard, peer.address));
  }
  Check check{"other shards", subject, Verdict::kOk, fmt::format("it hears all other shards ({})", said.peers.size())};
  if (unheard.empty()) return check;
  check.verdict = Verdict::kProblem;
  check.found = "it does not hear shard " + joined(unheard);
  check.change = fmt::format(
      "start those shards; open port {} of this one's host for their hosts; look at their logs for a refusal",
      said.address);
  return check;
}

void judge_status(const ShardFacts& facts, const OwnFacts& own, std::vector<Check>& checks) {
  const std::string& subject = facts.place.subject;
  const Result<StatusReport>& status = *facts.status;
  if (!status) {
    Check check{"http", subject, Verdict::kWarning, status.error().message,
                "start the shard with --http, or open that port for this host; where it has TLS, give --http-ca"};
    if (facts.place.http_is_guessed) {
      check.verdict = Verdict::kNotChecked;
      check.found += ": looked for 100 ports above the one for workers";
      check.change = "name the shard's --http address, or give --table";
    } else if (status.error().code == ErrorCode::kUnsupported) {
      check.verdict = Verdict::kNotChecked;
      check.change = "name the HTTP port of a shard; where it asks for a token, give --http-ca and --http-token-file";
    } else if (status.error().code == ErrorCode::kUnauthenticated) {
      check.verdict = Verdict::kProblem;
      check.change = "give the --http-token-file that this shard has";
    } else if (status.error().code == ErrorCode::kMalformed) {
      check.verdict = Verdict::kProblem;
      check.change = "give the address of a shard's --http: another process has this port";
    }
    checks.push_back(std::move(check));
    return;
  }
  checks.push_back({"http", subject, Verdict::kOk, fmt::format("{} answers", facts.place.http)});
  if (facts.place.number && *facts.place.number != status->shard) {
    checks.push_back(problem("number", subject, fmt::format("{} is shard {}", facts.place.http, status->shard),
                             "end the process that has that port, and start this shard with an --http of its own"));
  }
  checks.push_back(judge_version(subject, status->software, own.software));
  if (!status->table_error.empty()) {
    checks.push_back(problem("table", subject, status->table_error,
                             "give this shard's process its way to the table back (path, disk, network, rights): joins "
                             "and recoveries wait for it"));
  }
  const auto used = static_cast<double>(status->memory_bytes);
  const auto most = static_cast<double>(status->memory_bytes_max);
  Check memory{"memory", subject, Verdict::kOk,
               fmt::format("{:.0f} of {:.0f} MiB in use", used / (1 << 20), most / (1 << 20))};
  if (most > 0 && used > kMemoryFull * most) {
    memory.verdict = Verdict::kWarning;
    memory.change = "raise --shard-memory-bytes-max, add shards, or end a job: contributions are refused at the limit";
  }
  checks.push_back(std::move(memory));
  if (auto neighbours = judge_neighbours(subject, *status)) checks.push_back(std::move(*neighbours));
}

Check judge_clock(const ShardFacts& facts) {
  Check check{"clock skew", facts.place.subject, Verdict::kOk, ""};
  if (!facts.wall_clock.known()) {
    check.verdict = Verdict::kNotChecked;
    check.found = facts.clock_trouble;
    return check;
  }
  const TimeNs apart = facts.wall_clock.offset();
  const TimeNs error = facts.wall_clock.error();
  check.found = fmt::format("{:.3f} ms, within {:.3f} ms", in_ms(apart), in_ms(error));
  check.measure = Measure{in_ms(apart), "ms"};
  if (std::max(apart, -apart) - error <= kSkewMax) return check;
  check.verdict = Verdict::kWarning;
  check.change =
      "synchronise the clocks of both hosts (chrony): the times of their logs do not fit, and TLS to etcd may fail";
  return check;
}

}  // namespace

Check judge_latency(const std::string& subject, std::optional<TimeNs> round_trip) {
  if (!round_trip) return {"latency", subject, Verdict::kNotChecked, "the kernel has not measured it"};
  Check check{"latency", subject, Verdict::kOk, fmt::format("{:.3f} ms round trip", in_ms(*round_trip))};
  check.measure = Measure{in_ms(*round_trip), "ms"};
  if (*round_trip <= kRoundTripSlow) return check;
  check.verdict = Verdict::kWarning;
  check.change =
      "put workers and shards into one network: each step takes a round trip at least (--mode bounded_staleness hides "
      "a part of it)";
  return check;
}

Check judge_transfer(const std::string& subject, const TransferFacts& transfer, std::optional<TimeNs> round_trip) {
  Check check{"bandwidth", subject, Verdict::kOk, ""};
  if (!transfer.trouble.empty()) {
    check.verdict = Verdict::kNotChecked;
    check.found = transfer.trouble;
    return check;
  }
  const std::string less_traffic =
      "look for other traffic and for the speed of both network cards (ethtool NAME); on a slow path let jobs send "
      "less "
      "(--select topk:0.01 --codec-up auto)";
  if (transfer.late > 0) {
    check.verdict = Verdict::kWarning;
    check.found = fmt::format("1 MiB has not arrived after {:.1f} s", in_ms(transfer.late) / 1e3);
    check.change = less_traffic;
    return check;
  }
  const TimeNs best = std::max<TimeNs>(transfer.best, 1);
  const double rate = transfer.bits_per_second();
  check.measure = Measure{rate / 1e6, "Mbit/s"};
  check.found =
      fmt::format("{:.0f} Mbit/s or more ({} kB in {:.3f} ms)", rate / 1e6, transfer.bytes / 1'000, in_ms(best));
  if (rate >= kRateSlow) return check;
  if (!round_trip || best < kRoundTripsOfTransfer * *round_trip) {
    check.verdict = Verdict::kNotChecked;
    check.found = fmt::format("{} kB take few round trips: they do not show the path's rate", transfer.bytes / 1'000);
    check.change = "iperf3 between both hosts";
    return check;
  }
  check.verdict = Verdict::kWarning;
  check.change = less_traffic;
  return check;
}

std::vector<Check> judge_table(const TableFacts& facts) {
  if (!facts.trouble.empty()) {
    return {problem("table", facts.location, facts.trouble,
                    "give the --table of the servers, and let this user and host reach it; start the first shard with "
                    "it, if none has started")};
  }
  Check read{"table", facts.location, Verdict::kOk,
             fmt::format("{} shards, read in {:.1f} ms", facts.shards.size(), in_ms(facts.read_time))};
  read.measure = Measure{in_ms(facts.read_time), "ms"};
  if (facts.shards.empty()) {
    read.verdict = Verdict::kProblem;
    read.change = "start the shards with this --table: none has started";
  } else if (facts.read_time > kTableSlow) {
    read.verdict = Verdict::kWarning;
    read.change =
        "bring etcd nearer, or the table onto a disk with a faster sync: joins, drains and recoveries wait for it";
  }
  std::vector<Check> checks = {std::move(read)};
  for (const TableFacts::Shard& shard : facts.shards) {
    const std::string subject = fmt::format("shard {}", shard.number);
    if (shard.state == "ready" || shard.state == "draining") {
      checks.push_back({"lease", subject, Verdict::kOk, shard.state});
    } else {
      checks.push_back(problem(
          "lease", subject, shard.state == "gone" ? "it has no process" : "it has never started",
          fmt::format("millrace-server --shard {} --table {}; or start a spare", shard.number, facts.location)));
    }
  }
  return checks;
}

std::vector<Check> judge_shard(const ShardFacts& facts, const OwnFacts& own) {
  const std::string& subject = facts.place.subject;
  std::vector<Check> checks;
  for (const NameFacts& name : facts.names) checks.push_back(judge_name(subject, name));
  if (facts.connect && !*facts.connect) {
    checks.push_back(problem("port", subject,
                             fmt::format("{}: {}", facts.place.address, facts.connect->error().message),
                             "start the shard, or open this port in the firewalls of both hosts"));
  } else if (facts.connect) {
    checks.push_back({"port", subject, Verdict::kOk, fmt::format("{} accepts", facts.place.address)});
    checks.push_back(judge_latency(subject, (*facts.connect)->round_trip));
  }
  if (facts.mtu) checks.push_back(judge_mtu(subject, *facts.mtu));
  if (facts.handshake) checks.push_back(judge_handshake(facts, own));
  if (!facts.place.http_trouble.empty())
    checks.push_back({"http", subject, Verdict::kNotChecked, facts.place.http_trouble,
                      facts.place.state.empty()
                          ? "name its HTTP port, or give --table"
                          : "run this on its host as well, or give it an --http that other hosts reach"});
  if (checks.empty() && !facts.status)
    checks.push_back({"port", subject, Verdict::kNotChecked, "none of its addresses is known", "give --table"});
  if (!facts.status) return checks;
  judge_status(facts, own, checks);
  if (!*facts.status) return checks;
  checks.push_back(judge_clock(facts));
  if (facts.transfer) {
    checks.push_back(judge_transfer(subject, *facts.transfer,
                                    facts.connect && *facts.connect ? (*facts.connect)->round_trip : std::nullopt));
  }
  return checks;
}

std::vector<Check> judge_cluster(const std::vector<ShardFacts>& shards, const std::string& table) {
  std::vector<Check> checks;
  const auto advertised = [](const ShardFacts& facts) {
    return facts.status && *facts.status ? host_of((*facts.status)->address) : std::string();
  };
  const bool all_here = std::ranges::all_of(shards, [&](const ShardFacts& facts) {
    const std::string host = facts.place.address.empty() ? advertised(facts) : host_of(facts.place.address);
    return host.empty() || protocol::is_loopback_host(host);
  });
  const bool has_other_hosts = std::ranges::any_of(shards, [&](const ShardFacts& facts) {
    return !advertised(facts).empty() && !protocol::is_loopback_host(advertised(facts));
  });
  // A table over the network is there for several hosts. One of loopback addresses may still serve this host alone.
  const bool expects_other_hosts = is_etcd_elsewhere(table);
  for (const ShardFacts& facts : shards) {
    if (!(has_other_hosts || expects_other_hosts) || !protocol::is_loopback_host(advertised(facts))) continue;
    checks.push_back(problem("advertise", facts.place.subject,
                             fmt::format("its address {} leads other hosts to themselves", (*facts.status)->address),
                             "start it with --advertise HOST:PORT, a name or number of its host"));
    if (!has_other_hosts) checks.back().verdict = Verdict::kWarning;
  }
  if (shards.empty() || all_here) return checks;
  checks.push_back(
      {"other paths", "cluster", Verdict::kNotChecked,
       "the MTU between two other hosts, and the paths of workers on other hosts, do not show from here",
       "run millrace doctor --json with the same addresses on the host of each shard and worker, and compare"});
  return checks;
}

}  // namespace millrace::doctor

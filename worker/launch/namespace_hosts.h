#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/result.h"

namespace millrace::launch {

/// Checks the refusals of Hosts::make() without trying: for commands that have long work to do before.
///
/// rate    "1gbit", "2.5mbit", "none"; empty: loopback.
/// Errors  invalid_argument: not a rate; io: not root, or the script was not found.
Status check_hosts(const std::string& rate);

/// Places the processes of a benchmark or a demonstration: all on loopback, or each in a network namespace of its own.
/// The namespace is behind a rate (deploy/netlab.sh; root only). The namespaces end with the object.
class Hosts {
 public:
  /// rate  "1gbit" as tc(8) has it; empty: loopback, no root needed.
  /// Errors  io: not root, a missing tool, or the script not found; invalid_argument: not a rate.
  /// unlimited  number of further hosts, the last ones, behind links without a limit, as a switch's ports have.
  /// mtu        bytes of an IP packet on all links; 1500 to 9000.
  static Result<Hosts> make(uint32_t count, const std::string& rate, uint32_t unlimited = 0, uint32_t mtu = 1500);
  /// Drops every packet to one of the hosts with this chance, from now on. REQUIRES: made with a rate.
  /// Errors  io: no nft, or a kernel without random numbers for it.
  Status lose(double fraction) const;
  /// Loses packets in the same way over links as they are without loss: all packets that arrive in one piece are lost
  /// together. REQUIRES, Errors as lose().
  Status lose_bursts(double fraction) const;
  /// Stops the loss; from now on, the links to the hosts carry packets one by one, as lossy links do. For comparison.
  /// REQUIRES, Errors as lose().
  Status carry_singly() const;
  Hosts(Hosts&& other) noexcept;
  Hosts& operator=(Hosts&&) = delete;
  ~Hosts();

  /// Returns the namespace of host 0 .. count-1; empty on loopback.
  std::string network_namespace(uint32_t host) const;
  /// Its address without a port: "127.0.0.1" or "10.77.0.1" and up.
  std::string address(uint32_t host) const;

 private:
  Hosts() = default;
  Status set_links(const std::vector<std::string>& how) const;

  std::string script_;
  std::string prefix_;
};

/// Returns the path of deploy/netlab.sh: beside the build tree that this program runs from, or where it was installed.
std::string netlab_script();

}  // namespace millrace::launch

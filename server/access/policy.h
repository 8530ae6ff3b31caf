#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/result.h"
#include "server/base/join_request.h"
#include "server/base/reader_rights.h"

namespace millrace::server {

/// Holds the rights of some keys and named tokens to the jobs of some names.
struct PolicyRule {
  using Workers = std::pair<uint32_t, uint32_t>;  ///< first and last number

  std::vector<std::string> keys;  ///< patterns of names of keys and tokens; * stands for any text
  std::vector<std::string> jobs;  ///< patterns of names of jobs
  bool create = false;            ///< may open a job that does not exist, and join it
  bool join = false;
  bool observe = false;                                                  ///< a named token may read the job's status
  bool end = false;                                                      ///< a named token may end the job
  std::vector<Workers> workers;                                          ///< empty: all numbers
  uint64_t entries_max = std::numeric_limits<uint64_t>::max();           ///< of all tensors of a job
  uint64_t job_memory_bytes_max = std::numeric_limits<uint64_t>::max();  ///< of a job, on each shard
  uint32_t jobs_max = std::numeric_limits<uint32_t>::max();              ///< open at a time on each shard
  double rate_bits_max = std::numeric_limits<double>::infinity();        ///< of all messages of a key, to each shard
};

/// Decides on the rights of keys. The first rule whose patterns have both names judges a key and a job, alone. No such
/// rule: nothing is allowed. Pure.
class Policy {
 public:
  static constexpr size_t kTextBytesMax = 1 << 20;
  static constexpr size_t kRulesMax = 4'096;

  /// Allows everything: a server without a policy.
  Policy() = default;
  /// Reads a JSON text; deploy/SECURITY.md has the form.
  /// Errors  invalid_argument, with the rule's number: another form, an unknown word. limit_exceeded: too long.
  static Result<Policy> parse(std::string_view text);
  /// Reads a file. Errors  io; as parse(); as protocol::read_rights_file().
  static Result<Policy> read(const std::string& path);

  bool allows_everything() const { return !rules_; }
  size_t rule_count() const { return rules_ ? rules_->size() : 0; }
  /// Errors  unauthenticated: the sentence says which right is lacking. limit_exceeded: which quota.
  ///
  /// key  its name.
  Status judge(std::string_view key, const JoinRequest& request) const;
  /// Judges an act of a named token of the HTTP port. Errors  unauthenticated, as judge().
  Status judge_reader(std::string_view token, std::string_view job, ReaderRight right) const;
  /// Judges whether a shard that has `open` jobs of the key that created them may open another one.
  /// Errors  limit_exceeded. A key that lost all rights to the job has no quota for it.
  Status judge_opening(std::string_view key, std::string_view job, uint32_t open) const;
  /// Returns the least rate of all rules that name the key; infinity: none has one.
  double rate_bits_of(std::string_view key) const;
  /// Returns the rule that judges this key and job; nullptr: none, or everything is allowed.
  const PolicyRule* rule_of(std::string_view key, std::string_view job) const;

 private:
  std::optional<std::vector<PolicyRule>> rules_;
};

/// Returns whether the pattern has the text; * stands for any text. Cost: at most their lengths multiplied.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace millrace::server

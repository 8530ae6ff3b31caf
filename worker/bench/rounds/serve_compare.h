#pragma once

#include <nlohmann/json_fwd.hpp>

namespace millrace::bench {

/// Name of the row whose workers send to shard 0 itself, beside rows by way of racks.
constexpr const char* kStraightRow = "shard0";

/// A row's links: plain, or plain with losses of all packets that arrive in one piece. Or links that carry packets one
/// by one, without or with losses.
constexpr const char* kPlainLinks = "plain";
constexpr const char* kBurstLossLinks = "burst-loss";
constexpr const char* kSingleLinks = "single";
constexpr const char* kLossyLinks = "loss";

/// Adds `ratio_to_straight_bytes` to every row with racks: the bytes into shard 0 over those without racks.
void compare_racks(nlohmann::json& rows);

/// Adds `ratio_to_server` to the first row by the switch: its round over that of the first row by the shards.
void compare_paths(nlohmann::json& rows);

/// The round with losses over the same row's without: `ratio_to_same_links` over links that carry packets as the lossy
/// ones do, and for kLossyLinks `ratio_to_plain_links` too.
void compare_losses(nlohmann::json& rows);

/// Adds to every row with the audit `audit_ratio`, its round over that of the same row without the audit. Adds
/// `ratio_to_without_keys` to every row with keys in the same way. A row whose counterpart was not measured gets none.
void compare_variants(nlohmann::json& rows);

}  // namespace millrace::bench

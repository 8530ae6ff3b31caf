#pragma once

#include <string>
#include <vector>

#include "worker/cluster_status/fetch_status.h"
#include "worker/doctor/cluster_facts.h"

namespace millrace::doctor {

/// Joins the shards of the table, those of --servers, and those that answered, each once. Pure.
///
/// servers  as parse_server_addresses() returns them: the addresses that workers use.
/// answers  of the HTTP ports of all of them.
std::vector<ShardPlace> join_places(const TableFacts& table, const std::vector<std::string>& servers,
                                    const cluster_status::Answers& answers);

}  // namespace millrace::doctor

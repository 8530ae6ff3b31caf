#pragma once

#include <string>
#include <string_view>

#include "monitoring/http/http_client.h"
#include "worker/program/outcome.h"

namespace millrace::cluster_status {

/// Asks a shard by HTTP to end an open job, as its POST /jobs/NAME/end does (deploy/HTTP.md).
///
/// address   "HOST:PORT" of the shard's --http.
/// reason    UTF-8; longer than protocol::kSentenceBytesMax it is cut; empty: none.
/// caller    as of http_get(); its token has the right to end the job.
/// Failures  usage: no open job of that name. refused: the shard refuses the token. unreachable: it does not answer, or
///           its table; the job may have ended.
program::Outcome end_over_http(const std::string& address, std::string_view job, std::string_view reason,
                               const monitoring::HttpCaller* caller);

/// Returns the path that ends the job of that name.
std::string end_path(std::string_view job);

}  // namespace millrace::cluster_status

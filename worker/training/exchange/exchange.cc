#include "worker/training/exchange/exchange.h"

namespace millrace::training {

Result<std::unique_ptr<Exchange>> make_exchange(const ExchangeSetup& setup, const OptimizerOptions& options) {
  if (options.path == ExchangePath::kServers) return make_server_exchange(setup, options);
  return make_peer_exchange(setup, options);
}

Status check_exchange(const OptimizerOptions& options) {
  return options.path == ExchangePath::kServers ? check_server_exchange(options) : check_peer_exchange(options);
}

}  // namespace millrace::training

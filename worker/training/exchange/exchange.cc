#include "worker/training/exchange/exchange.h"

#include "kernels/codec/lossy_index_codec.h"
#include "worker/peer/channel/stream_wire.h"

namespace millrace::training {
CodecError codec_error_of(const OptimizerOptions& options) {
  if (options.job.contributions.unbiased) return CodecError::kDrop;  // there is no residual to retain it in
  if (options.codec_error) return *options.codec_error;
  for (const auto& codec : {codec_of(options), options.quantizer}) {
    if (!codec || !is_lossy(*codec)) continue;
    const ValueCodec* values = find_value_codec(codec->value);
    if (values != nullptr && !values->contraction(*codec)) return CodecError::kDrop;
    // Values at other indices than theirs: fed back, the error grows.
    const PickingIndexCodec* picking = picking_codec(*find_index_codec(codec->index));
    if (picking != nullptr && picking->by_position()) return CodecError::kDrop;
  }
  return CodecError::kRetain;
}

Result<std::unique_ptr<Exchange>> make_exchange(const ExchangeSetup& setup, const OptimizerOptions& options) {
  return options.path == ExchangePath::kServers ? make_server_exchange(setup, options)
                                                : make_peer_exchange(setup, options);
}

Status check_exchange(const OptimizerOptions& options) {
  return options.path == ExchangePath::kServers ? check_server_exchange(options) : check_peer_exchange(options);
}

}  // namespace millrace::training

#include "protocol/datagram/session_mac.h"

#include <sodium.h>

#include <cstring>

#include "kernels/base/check.h"

namespace millrace::protocol {

SessionMac::SessionMac() = default;

void SessionMac::set_key(const Key& key) { key_ = key; }

SessionMac::~SessionMac() { sodium_memzero(key_.data(), key_.size()); }

Mac SessionMac::of(ByteSpan bytes, uint64_t sequence) const {
  std::array<uint8_t, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> nonce{};
  std::memcpy(nonce.data() + 4, &sequence, sizeof(sequence));
  Mac mac;
  unsigned long long mac_bytes = 0;
  const int failed = crypto_aead_chacha20poly1305_ietf_encrypt_detached(
      nullptr, mac.data(), &mac_bytes, nullptr, 0, bytes.data(), bytes.size(), nullptr, nonce.data(), key_.data());
  MILLRACE_CHECK(failed == 0 && mac_bytes == mac.size(), failed, mac_bytes);
  return mac;
}

}  // namespace millrace::protocol

#include <emmintrin.h>
#include <intel-ipsec-mb.h>
#include <sodium.h>

#include <array>
#include <cstring>

#include "kernels/base/check.h"
#include "protocol/datagram/session_mac.h"

/// GMAC by libipsec-mb: vectors of carry-less products, and of AES where the machine has them.
namespace millrace::protocol {
namespace {

constexpr size_t kNonceBytes = 12;

/// Returns the library's functions for this machine, looked up once; its direct calls use nothing else of it.
IMB_MGR& functions() {
  static IMB_MGR* const manager = [] {
    IMB_MGR* made = alloc_mb_mgr(0);
    MILLRACE_CHECK(made != nullptr);
    IMB_ARCH machine;
    init_mb_mgr_auto(made, &machine);
    MILLRACE_CHECK(made->gmac256_init != nullptr, imb_get_errno(made));
    return made;
  }();
  return *manager;
}

}  // namespace

struct SessionMac::State {
  IMB_MGR& functions;
  alignas(64) gcm_key_data key;
};

SessionMac::SessionMac() : state_(new State{functions(), {}}) {}

SessionMac::~SessionMac() { sodium_memzero(&state_->key, sizeof(state_->key)); }

void SessionMac::set_key(const Key& key) { IMB_AES256_GCM_PRE(&state_->functions, key.data(), &state_->key); }

std::string_view SessionMac::library() { return "libipsec-mb"; }

Mac SessionMac::of(ByteSpan bytes, uint64_t sequence) const {
  // 12 bytes: four zeros and the number. They are written in one store, because the library loads them in one. A load
  // of the bytes of several stores waits until all stores before them are in the cache: 0.2 us where those missed it.
  const __m128i words = _mm_set_epi64x(static_cast<int64_t>(sequence >> 32), static_cast<int64_t>(sequence << 32));
  alignas(__m128i) std::array<uint8_t, sizeof(__m128i)> nonce;
  std::memcpy(nonce.data(), &words, sizeof(words));
  alignas(64) gcm_context_data context;
  Mac mac;
  IMB_AES256_GMAC_INIT(&state_->functions, &state_->key, &context, nonce.data(), kNonceBytes);
  IMB_AES256_GMAC_UPDATE(&state_->functions, &state_->key, &context, bytes.data(), bytes.size());
  IMB_AES256_GMAC_FINALIZE(&state_->functions, &state_->key, &context, mac.data(), mac.size());
  return mac;
}

}  // namespace millrace::protocol

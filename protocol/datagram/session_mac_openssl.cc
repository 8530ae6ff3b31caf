#include <openssl/evp.h>

#include <cstring>

#include "kernels/base/check.h"
#include "protocol/datagram/session_mac.h"

/// GMAC by OpenSSL, on every machine: the same bytes, more time a call.
namespace millrace::protocol {

struct SessionMac::State {
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();

  State() {
    MILLRACE_CHECK(context != nullptr);
    MILLRACE_CHECK(EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), nullptr, nullptr, nullptr) == 1);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_CIPHER_CTX_free(context); }  // wipes the key
};

SessionMac::SessionMac() : state_(std::make_unique<State>()) {}

SessionMac::~SessionMac() = default;

void SessionMac::set_key(const Key& key) {
  MILLRACE_CHECK(EVP_EncryptInit_ex(state_->context, nullptr, nullptr, key.data(), nullptr) == 1);
}

std::string_view SessionMac::library() { return "OpenSSL"; }

Mac SessionMac::of(ByteSpan bytes, uint64_t sequence) const {
  std::array<uint8_t, 12> nonce{};
  std::memcpy(nonce.data() + 4, &sequence, sizeof(sequence));
  Mac mac;
  Mac nothing;
  int length = 0;
  EVP_CIPHER_CTX* const context = state_->context;
  const bool signed_ =
      EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
      EVP_EncryptUpdate(context, nullptr, &length, bytes.data(), static_cast<int>(bytes.size())) == 1 &&
      EVP_EncryptFinal_ex(context, nothing.data(), &length) == 1 &&
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(mac.size()), mac.data()) == 1;
  MILLRACE_CHECK(signed_, bytes.size());
  return mac;
}

}  // namespace millrace::protocol

// The MAC of sessions from any library against OpenSSL's GMAC.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <cstring>
#include <numeric>

#include "protocol/datagram/session_mac.h"

namespace millrace::protocol {
namespace {

Mac oracle(const SessionMac::Key& key, ByteSpan bytes, uint64_t sequence) {
  std::array<uint8_t, 12> nonce{};
  std::memcpy(nonce.data() + 4, &sequence, sizeof(sequence));
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  Mac mac{};
  Mac nothing{};
  int length = 0;
  EXPECT_EQ(EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), nullptr, key.data(), nonce.data()), 1);
  EXPECT_EQ(EVP_EncryptUpdate(context, nullptr, &length, bytes.data(), static_cast<int>(bytes.size())), 1);
  EXPECT_EQ(EVP_EncryptFinal_ex(context, nothing.data(), &length), 1);
  EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, mac.data()), 1);
  EVP_CIPHER_CTX_free(context);
  return mac;
}

TEST(SessionMac, IsGmacAtEveryLengthAlignmentAndKey) {
  SessionMac mac;
  ByteBuffer bytes(9100);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + i / 256);
  for (uint8_t first = 0; first < 3; ++first) {
    SessionMac::Key key;
    std::iota(key.begin(), key.end(), first);
    mac.set_key(key);
    for (size_t length = 1; length < 9000; length += length < 600 ? 1 : 173) {
      const ByteSpan some = ByteSpan(bytes).subspan(length % 19, length);
      const uint64_t sequence = length * 0x9e3779b97f4a7c15;
      EXPECT_EQ(mac.of(some, sequence), oracle(key, some, sequence)) << length;
    }
  }
}

/// Neither plaintext nor additional data, the key and the nonce 0.
TEST(SessionMac, OfNothingIsTheTagOfTheSpecificationsTestCase13) {
  SessionMac mac;
  mac.set_key({});
  const Mac expected = {0x53, 0x0f, 0x8a, 0xfb, 0xc7, 0x45, 0x36, 0xb9, 0xa9, 0x63, 0xb4, 0xf1, 0xc4, 0xcb, 0x73, 0x8b};
  EXPECT_EQ(mac.of({}, 0), expected);
}

}  // namespace
}  // namespace millrace::protocol

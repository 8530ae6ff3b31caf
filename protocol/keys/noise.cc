#include "protocol/keys/noise.h"

#include <sodium.h>

#include <algorithm>
#include <initializer_list>

#include "kernels/base/check.h"

namespace millrace::protocol {
namespace {

using Bytes32 = std::array<uint8_t, 32>;
using NonceBytes = std::array<uint8_t, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

static_assert(kNoiseTagBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
static_assert(kKeyBytes == crypto_aead_chacha20poly1305_ietf_KEYBYTES && kKeyBytes == crypto_scalarmult_BYTES);
static_assert(sizeof(Bytes32) == crypto_hash_sha256_BYTES && sizeof(Bytes32) == crypto_auth_hmacsha256_BYTES);

constexpr std::string_view kNoiseName = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";

/// Returns four bytes 0, then the number, little-endian.
NonceBytes nonce_of(uint64_t number) {
  NonceBytes nonce{};
  for (size_t at = 0; at < sizeof number; ++at) nonce[4 + at] = static_cast<uint8_t>(number >> (8 * at));
  return nonce;
}

/// Returns the SHA-256 of the parts, one after the other.
Bytes32 sha256_of(std::initializer_list<ByteSpan> parts) {
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  for (const ByteSpan part : parts) crypto_hash_sha256_update(&state, part.data(), part.size());
  Bytes32 digest;
  crypto_hash_sha256_final(&state, digest.data());
  return digest;
}

/// Returns the HMAC of the parts. Its memory is overwritten at its end.
SecretKey mac_of(const SecretKey& key, std::initializer_list<ByteSpan> parts) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.bytes().data(), key.bytes().size());
  for (const ByteSpan part : parts) crypto_auth_hmacsha256_update(&state, part.data(), part.size());
  Bytes32 digest;
  crypto_auth_hmacsha256_final(&state, digest.data());
  const SecretKey made(digest);
  sodium_memzero(digest.data(), digest.size());
  sodium_memzero(&state, sizeof state);
  return made;
}

/// Returns the outputs of Noise's HKDF; those that a pattern does not need are dropped.
std::array<SecretKey, 3> keys_of(const SecretKey& chaining, ByteSpan input) {
  constexpr std::array<uint8_t, 3> kNumbers{1, 2, 3};
  const ByteSpan numbers(kNumbers);
  const SecretKey key = mac_of(chaining, {input});
  const SecretKey first = mac_of(key, {numbers.subspan(0, 1)});
  const SecretKey second = mac_of(key, {first.bytes(), numbers.subspan(1, 1)});
  return {first, second, mac_of(key, {second.bytes(), numbers.subspan(2, 1)})};
}

}  // namespace

void NoiseCipher::seal(std::span<uint8_t> record, ByteSpan context) {
  MILLRACE_CHECK(record.size() >= kNoiseTagBytes, record.size());
  const NonceBytes nonce = nonce_of(next_++);
  crypto_aead_chacha20poly1305_ietf_encrypt(record.data(), nullptr, record.data(), record.size() - kNoiseTagBytes,
                                            context.data(), context.size(), nullptr, nonce.data(), key_.bytes().data());
}

bool NoiseCipher::open(std::span<uint8_t> record, ByteSpan context) {
  if (record.size() < kNoiseTagBytes) return false;
  const NonceBytes nonce = nonce_of(next_++);
  return crypto_aead_chacha20poly1305_ietf_decrypt(record.data(), nullptr, nullptr, record.data(), record.size(),
                                                   context.data(), context.size(), nonce.data(),
                                                   key_.bytes().data()) == 0;
}

NoiseHandshake::NoiseHandshake(Side side, const SecretKey& secret, ByteSpan context, const KeyPair& ephemeral)
    : side_(side), own_(ephemeral), cipher_(SecretKey()) {
  const ByteBuffer name(kNoiseName.begin(), kNoiseName.end());
  hash_ = sha256_of({name});
  chaining_ = SecretKey(hash_);
  mix_hash(context);
  const auto [chaining, hashed, key] = keys_of(chaining_, secret.bytes());
  chaining_ = chaining;
  mix_hash(hashed.bytes());
  cipher_ = NoiseCipher(key);
}

void NoiseHandshake::mix_hash(ByteSpan bytes) { hash_ = sha256_of({hash_, bytes}); }

void NoiseHandshake::mix_key(ByteSpan input) {
  const auto [chaining, key, unused] = keys_of(chaining_, input);
  chaining_ = chaining;
  cipher_ = NoiseCipher(key);
}

void NoiseHandshake::mix_ephemeral(const PublicKey& key) {
  mix_hash(key.bytes);
  mix_key(key.bytes);
}

void NoiseHandshake::mix_shared() {
  Bytes32 shared{};
  // A holder of the secret may send a key that makes 0 of every other one. Noise lets both sides go on.
  const auto& secret = own_.secret.bytes();
  if (crypto_scalarmult(shared.data(), secret.data(), theirs_.bytes.data()) != 0) shared.fill(0);
  mix_key(shared);
  sodium_memzero(shared.data(), shared.size());
}

ByteBuffer NoiseHandshake::write(ByteSpan payload) {
  MILLRACE_CHECK(messages_ == (side_ == Side::kConnects ? 0 : 1), messages_);
  mix_ephemeral(own_.public_key);
  if (is_answer()) mix_shared();
  ByteBuffer message(kNoiseMessageBytes + payload.size());
  std::ranges::copy(own_.public_key.bytes, message.begin());
  std::ranges::copy(payload, message.begin() + kKeyBytes);
  const auto sealed = std::span(message).subspan(kKeyBytes);
  cipher_.seal(sealed, hash_);
  mix_hash(sealed);
  ++messages_;
  return message;
}

std::optional<ByteBuffer> NoiseHandshake::read(ByteSpan message) {
  MILLRACE_CHECK(messages_ == (side_ == Side::kConnects ? 1 : 0), messages_);
  if (message.size() < kNoiseMessageBytes) return std::nullopt;
  std::ranges::copy(message.first(kKeyBytes), theirs_.bytes.begin());
  mix_ephemeral(theirs_);
  if (is_answer()) mix_shared();
  const ByteSpan sealed = message.subspan(kKeyBytes);
  ByteBuffer payload(sealed.begin(), sealed.end());
  if (!cipher_.open(payload, hash_)) return std::nullopt;
  payload.resize(payload.size() - kNoiseTagBytes);
  mix_hash(sealed);
  ++messages_;
  return payload;
}

NoiseHandshake::Ciphers NoiseHandshake::ciphers() const {
  MILLRACE_CHECK(messages_ == 2, messages_);
  const auto [connects, accepts, unused] = keys_of(chaining_, {});
  if (side_ == Side::kConnects) return {.sends = NoiseCipher(connects), .receives = NoiseCipher(accepts)};
  return {.sends = NoiseCipher(accepts), .receives = NoiseCipher(connects)};
}

SecretKey shared_secret_of(const KeyPair& pair, std::string_view purpose) {
  const ByteBuffer text(purpose.begin(), purpose.end());
  return mac_of(pair.secret, {text});
}

}  // namespace millrace::protocol

#include "protocol/keys/key.h"

#include <sodium.h>

#include <algorithm>

#include "kernels/base/check.h"

namespace millrace::protocol {
namespace {

static_assert(kKeyBytes == crypto_box_PUBLICKEYBYTES && kKeyBytes == crypto_box_SECRETKEYBYTES);

constexpr std::string_view kPublicWord = "millrace-public-key ";
constexpr std::string_view kSecretWord = "millrace-secret-key ";
constexpr size_t kKeyNameBytesMax = 64;

void begin_sodium() { MILLRACE_CHECK(sodium_init() >= 0); }

/// Takes time that does not depend on the digits.
std::string digits_of(const std::array<uint8_t, kKeyBytes>& bytes) {
  std::string text(2 * kKeyBytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

std::optional<std::array<uint8_t, kKeyBytes>> bytes_of_digits(std::string_view digits) {
  std::array<uint8_t, kKeyBytes> bytes{};
  size_t count = 0;
  if (digits.size() != 2 * kKeyBytes) return std::nullopt;
  if (sodium_hex2bin(bytes.data(), bytes.size(), digits.data(), digits.size(), nullptr, &count, nullptr) != 0)
    return std::nullopt;
  if (count != bytes.size()) return std::nullopt;
  return bytes;
}

std::optional<std::array<uint8_t, kKeyBytes>> bytes_of_text(std::string_view word, std::string_view text) {
  if (!text.starts_with(word)) return std::nullopt;
  text.remove_prefix(word.size());
  if (text.ends_with('\n')) text.remove_suffix(1);
  return bytes_of_digits(text);
}

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

}  // namespace

SecretKey::~SecretKey() { sodium_memzero(bytes_.data(), bytes_.size()); }

KeyPair draw_key_pair() {
  begin_sodium();
  KeyPair pair;
  std::array<uint8_t, kKeyBytes> secret{};
  MILLRACE_CHECK(crypto_box_keypair(pair.public_key.bytes.data(), secret.data()) == 0);
  pair.secret = SecretKey(secret);
  sodium_memzero(secret.data(), secret.size());
  return pair;
}

KeyPair key_pair_of(const SecretKey& secret) {
  begin_sodium();
  KeyPair pair{{}, secret};
  MILLRACE_CHECK(crypto_scalarmult_base(pair.public_key.bytes.data(), secret.bytes().data()) == 0);
  return pair;
}

std::string key_digits(const PublicKey& key) { return digits_of(key.bytes); }

std::optional<PublicKey> key_of_digits(std::string_view digits) {
  const auto bytes = bytes_of_digits(digits);
  return bytes ? std::optional(PublicKey{*bytes}) : std::nullopt;
}

std::string public_key_text(const PublicKey& key) { return std::string(kPublicWord) + digits_of(key.bytes) + "\n"; }
std::string secret_key_text(const SecretKey& key) { return std::string(kSecretWord) + digits_of(key.bytes()) + "\n"; }

std::optional<PublicKey> public_key_of_text(std::string_view text) {
  const auto bytes = bytes_of_text(kPublicWord, text);
  if (!bytes || PublicKey{*bytes}.is_none()) return std::nullopt;
  return PublicKey{*bytes};
}

std::optional<SecretKey> secret_key_of_text(std::string_view text) {
  const auto bytes = bytes_of_text(kSecretWord, text);
  if (!bytes || *bytes == std::array<uint8_t, kKeyBytes>{}) return std::nullopt;
  return SecretKey(*bytes);
}

std::string refuse_key_name(std::string_view name) {
  const bool fits =
      !name.empty() && name.size() <= kKeyNameBytesMax && is_letter_or_digit(name.front()) &&
      std::ranges::all_of(name, [](char c) { return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-'; });
  if (fits) return {};
  return "a key's name has 1 to 64 of the characters a-z A-Z 0-9 . _ - and begins with a letter or digit";
}

}  // namespace millrace::protocol

#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

/// Key pairs of workers and clusters: X25519, as CURVE, the security mechanism of ZeroMQ, uses them.
namespace millrace::protocol {

inline constexpr size_t kKeyBytes = 32;

/// Names a process to those that it connects to. All bytes 0: no key.
struct PublicKey {
  std::array<uint8_t, kKeyBytes> bytes{};
  auto operator<=>(const PublicKey&) const = default;
  bool is_none() const { return *this == PublicKey{}; }
};

/// Holds a secret; its memory is overwritten at its end. No text of it exists but that of its file.
class SecretKey {
 public:
  SecretKey() = default;
  explicit SecretKey(const std::array<uint8_t, kKeyBytes>& bytes) : bytes_(bytes) {}
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey();
  const std::array<uint8_t, kKeyBytes>& bytes() const { return bytes_; }

 private:
  std::array<uint8_t, kKeyBytes> bytes_{};
};

struct KeyPair {
  PublicKey public_key;
  SecretKey secret;
};

/// Draws a key pair from the system's generator.
KeyPair draw_key_pair();
/// Returns the pair of a secret.
KeyPair key_pair_of(const SecretKey& secret);

/// Returns 64 hexadecimal digits.
std::string key_digits(const PublicKey& key);
/// Reads 64 hexadecimal digits. Empty: they are not.
std::optional<PublicKey> key_of_digits(std::string_view digits);

/// Says from which day on, 00:00 UTC, shards refuse a key; empty: it has no end.
using KeyEnd = std::optional<std::chrono::sys_days>;

struct DatedKey {
  PublicKey key;
  KeyEnd end;
};

/// Returns the present day, UTC.
std::chrono::sys_days present_day();
/// Returns "2027-11-29", and reads it back. Empty: no day from 2000-01-01 to 9999-12-31.
std::string key_end_text(std::chrono::sys_days day);
KeyEnd key_end_of_text(std::string_view text);

/// Reads 64 hexadecimal digits [" until " day]. Empty: they are not, or no key.
std::optional<DatedKey> dated_key_of_digits(std::string_view text);

/// Returns the text of a key file, and reads it back. Both kinds have a word of their own, so that neither file is
/// taken for the other:
///
///     public = "millrace-public-key " 64 hexadecimal digits [" until " day] "\n"
///     secret = "millrace-secret-key " 64 hexadecimal digits "\n"
///
/// The newline may be missing. Empty: another text.
std::string public_key_text(const PublicKey& key, KeyEnd end = {});
std::string secret_key_text(const SecretKey& key);
std::optional<DatedKey> public_key_of_text(std::string_view text);
std::optional<SecretKey> secret_key_of_text(std::string_view text);

/// Returns why the text cannot name a key; empty: it can. A name has 1 to 64 of the characters a-z A-Z 0-9 . _ - and
/// begins with a letter or digit: it is a part of a file's name, and logs have it unchanged.
std::string refuse_key_name(std::string_view name);

}  // namespace millrace::protocol

template <>
struct std::hash<millrace::protocol::PublicKey> {
  size_t operator()(const millrace::protocol::PublicKey& key) const noexcept {
    size_t part = 0;  // keys are drawn at random: a part of one is as good as a hash of it
    std::memcpy(&part, key.bytes.data(), sizeof(part));
    return part;
  }
};

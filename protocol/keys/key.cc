#include "protocol/keys/key.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <charconv>

#include "kernels/base/check.h"

namespace millrace::protocol {
namespace {

static_assert(kKeyBytes == crypto_box_PUBLICKEYBYTES && kKeyBytes == crypto_box_SECRETKEYBYTES);

constexpr std::string_view kPublicWord = "millrace-public-key ";
constexpr std::string_view kSecretWord = "millrace-secret-key ";
constexpr std::string_view kUntil = " until ";
constexpr int kFirstYear = 2000;
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

/// Returns the text between the word and the newline.
std::optional<std::string_view> behind_word(std::string_view word, std::string_view text) {
  if (!text.starts_with(word)) return std::nullopt;
  text.remove_prefix(word.size());
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

std::optional<unsigned> number_of_digits(std::string_view digits) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
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

std::chrono::sys_days present_day() { return std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()); }

std::string key_end_text(std::chrono::sys_days day) {
  const std::chrono::year_month_day date(day);
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

KeyEnd key_end_of_text(std::string_view text) {
  constexpr size_t kDayBytes = 10;
  if (text.size() != kDayBytes || text[4] != '-' || text[7] != '-') return std::nullopt;
  const auto year = number_of_digits(text.substr(0, 4));
  const auto month = number_of_digits(text.substr(5, 2));
  const auto day = number_of_digits(text.substr(8, 2));
  if (!year || !month || !day || *year < kFirstYear) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(*year)), std::chrono::month(*month),
                                         std::chrono::day(*day)};
  return date.ok() ? KeyEnd(std::chrono::sys_days(date)) : std::nullopt;
}

std::optional<DatedKey> dated_key_of_digits(std::string_view text) {
  DatedKey dated;
  if (const size_t at = text.find(kUntil); at != std::string_view::npos) {
    dated.end = key_end_of_text(text.substr(at + kUntil.size()));
    if (!dated.end) return std::nullopt;
    text = text.substr(0, at);
  }
  const auto key = key_of_digits(text);
  if (!key || key->is_none()) return std::nullopt;
  dated.key = *key;
  return dated;
}

std::string public_key_text(const PublicKey& key, KeyEnd end) {
  const std::string until = end ? std::string(kUntil) + key_end_text(*end) : std::string();
  return std::string(kPublicWord) + digits_of(key.bytes) + until + "\n";
}
std::string secret_key_text(const SecretKey& key) { return std::string(kSecretWord) + digits_of(key.bytes()) + "\n"; }

std::optional<DatedKey> public_key_of_text(std::string_view text) {
  const auto rest = behind_word(kPublicWord, text);
  return rest ? dated_key_of_digits(*rest) : std::nullopt;
}

std::optional<SecretKey> secret_key_of_text(std::string_view text) {
  const auto rest = behind_word(kSecretWord, text);
  const auto bytes = rest ? bytes_of_digits(*rest) : std::nullopt;
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

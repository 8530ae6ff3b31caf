#include "protocol/datagram/io/job_key_file.h"

#include <sodium.h>

#include <optional>
#include <string_view>

#include "protocol/keys/secret_file.h"

namespace millrace::protocol {
namespace {

constexpr size_t kDigits = 2 * sizeof(JobKey);

std::optional<uint8_t> digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<uint8_t>(c - 'A' + 10);
  return std::nullopt;
}

std::optional<JobKey> parse(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.size() != kDigits) return std::nullopt;
  JobKey key;
  for (size_t i = 0; i < key.size(); ++i) {
    const auto high = digit(text[2 * i]);
    const auto low = digit(text[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    key[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  return key;
}

}  // namespace

Result<JobKey> read_job_key(const std::string& path) {
  Result<std::string> text = read_secret_file(path, "job key", kDigits + 1);
  if (!text) return std::unexpected(text.error());
  const auto key = parse(*text);
  sodium_memzero(text->data(), text->size());
  if (key) return *key;
  return fail(ErrorCode::kInvalidArgument,
              "job key file " + path + ": must be 64 hexadecimal digits and a newline (millrace keys job)");
}

Result<std::string> write_new_job_key(const std::string& folder, uint32_t job) {
  if (const Status made = make_secret_folder(folder); !made) return std::unexpected(made.error());
  std::string path = folder + "/" + std::to_string(job) + ".key";
  JobKey key;
  randombytes_buf(key.data(), key.size());
  std::string text(kDigits + 1, '\n');
  sodium_bin2hex(text.data(), text.size(), key.data(), key.size());  // ends with a zero byte
  text.back() = '\n';
  const Status written = make_new_file(path, "job key", 0600, text);
  sodium_memzero(key.data(), key.size());
  sodium_memzero(text.data(), text.size());
  if (!written) return std::unexpected(written.error());
  return path;
}

}  // namespace millrace::protocol

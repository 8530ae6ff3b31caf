#include "protocol/table/etcd_transaction.h"

#include <fmt/format.h>
#include <sodium.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/base/text.h"

namespace millrace::protocol {
namespace {

using Json = nlohmann::json;

std::string base64(ByteSpan bytes) {
  std::string text(sodium_base64_encoded_len(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the terminating zero
  return text;
}
std::string base64(std::string_view text) { return base64(bytes_of(text)); }

std::optional<ByteBuffer> from_base64(const std::string& text) {
  ByteBuffer bytes(text.size() / 4 * 3 + 3);
  size_t size = 0;
  if (sodium_base642bin(bytes.data(), bytes.size(), text.data(), text.size(), nullptr, &size, nullptr,
                        sodium_base64_VARIANT_ORIGINAL) != 0)
    return std::nullopt;
  bytes.resize(size);
  return bytes;
}

/// Returns the member of an object, or nullptr.
const Json* find(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto at = json.find(name);
  return at == json.end() ? nullptr : &*at;
}

/// Reads a 64-bit number, which the gateway writes as a text; absent: 0, which it leaves out.
std::optional<uint64_t> read_number(const Json& json, const char* name) {
  const Json* found = find(json, name);
  if (!found) return 0;
  if (found->is_number_unsigned()) return found->get<uint64_t>();
  if (!found->is_string()) return std::nullopt;
  const auto& text = found->get_ref<const std::string&>();
  uint64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Reads bytes; absent: none.
std::optional<ByteBuffer> read_bytes(const Json& json, const char* name) {
  const Json* found = find(json, name);
  if (!found) return ByteBuffer();
  if (!found->is_string()) return std::nullopt;
  return from_base64(found->get_ref<const std::string&>());
}

std::optional<EtcdEntry> etcd_entry_of(const Json& json) {
  const auto key = read_bytes(json, "key");
  auto value = read_bytes(json, "value");
  const auto version = read_number(json, "version");
  const auto revision = read_number(json, "mod_revision");
  if (!key || !value || !version || !revision || *version == 0) return std::nullopt;
  return EtcdEntry{std::string(text_of(*key)), std::move(*value), *version, *revision};
}

std::unexpected<Error> malformed() {
  return fail(ErrorCode::kMalformed, "membership table: the answer is not that of etcd's JSON gateway (/v3/kv/txn)");
}

}  // namespace

std::string end_of_prefix(std::string_view prefix) {
  MILLRACE_CHECK(!prefix.empty() && static_cast<uint8_t>(prefix.back()) < 255, prefix.size());
  std::string end(prefix);
  end.back() = static_cast<char>(end.back() + 1);
  return end;
}

EtcdTransaction::Operations& EtcdTransaction::Operations::add(std::string one) {
  if (!json_.empty()) json_ += ',';
  json_ += one;
  return *this;
}

EtcdTransaction::Operations& EtcdTransaction::Operations::put(std::string_view key, ByteSpan value) {
  return add(fmt::format(R"({{"request_put":{{"key":"{}","value":"{}"}}}})", base64(key), base64(value)));
}
EtcdTransaction::Operations& EtcdTransaction::Operations::put(std::string_view key, std::string_view value) {
  return put(key, bytes_of(value));
}
EtcdTransaction::Operations& EtcdTransaction::Operations::put_leased(std::string_view key, std::string_view value,
                                                                     int64_t lease) {
  return add(
      fmt::format(R"({{"request_put":{{"key":"{}","value":"{}","lease":"{}"}}}})", base64(key), base64(value), lease));
}
EtcdTransaction::Operations& EtcdTransaction::Operations::get(std::string_view key) {
  return add(fmt::format(R"({{"request_range":{{"key":"{}"}}}})", base64(key)));
}
EtcdTransaction::Operations& EtcdTransaction::Operations::get_all(std::string_view prefix) {
  return add(fmt::format(R"({{"request_range":{{"key":"{}","range_end":"{}"}}}})", base64(prefix),
                         base64(end_of_prefix(prefix))));
}
EtcdTransaction::Operations& EtcdTransaction::Operations::remove(std::string_view key) {
  return add(fmt::format(R"({{"request_delete_range":{{"key":"{}"}}}})", base64(key)));
}
EtcdTransaction::Operations& EtcdTransaction::Operations::remove_range(std::string_view from, std::string_view to) {
  return add(fmt::format(R"({{"request_delete_range":{{"key":"{}","range_end":"{}"}}}})", base64(from), base64(to)));
}

EtcdTransaction& EtcdTransaction::compare(std::string one) {
  if (!comparisons_.empty()) comparisons_ += ',';
  comparisons_ += one;
  return *this;
}

EtcdTransaction& EtcdTransaction::if_version(std::string_view key, uint64_t version) {
  return compare(
      fmt::format(R"({{"key":"{}","target":"VERSION","result":"EQUAL","version":"{}"}})", base64(key), version));
}
EtcdTransaction& EtcdTransaction::if_none(std::string_view prefix) {
  return compare(fmt::format(R"({{"key":"{}","range_end":"{}","target":"VERSION","result":"EQUAL","version":"0"}})",
                             base64(prefix), base64(end_of_prefix(prefix))));
}
EtcdTransaction& EtcdTransaction::if_mod_revision(std::string_view key, uint64_t revision) {
  return compare(
      fmt::format(R"({{"key":"{}","target":"MOD","result":"EQUAL","mod_revision":"{}"}})", base64(key), revision));
}
EtcdTransaction& EtcdTransaction::if_value(std::string_view key, std::string_view value) {
  return compare(
      fmt::format(R"({{"key":"{}","target":"VALUE","result":"EQUAL","value":"{}"}})", base64(key), base64(value)));
}

std::string EtcdTransaction::json() const {
  return fmt::format(R"({{"compare":[{}],"success":[{}],"failure":[{}]}})", comparisons_, then_.json(),
                     otherwise_.json());
}

Result<EtcdAnswer> parse_etcd_answer(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!find(json, "header")) return malformed();
  EtcdAnswer answer;
  if (const Json* succeeded = find(json, "succeeded")) {
    if (!succeeded->is_boolean()) return malformed();
    answer.succeeded = succeeded->get<bool>();
  }
  const Json* responses = find(json, "responses");
  if (!responses) return answer;
  if (!responses->is_array()) return malformed();
  for (const Json& response : *responses) {
    std::vector<EtcdEntry>& entries = answer.ranges.emplace_back();
    const Json* range = find(response, "response_range");
    const Json* found = range ? find(*range, "kvs") : nullptr;
    if (!found) continue;
    if (!found->is_array()) return malformed();
    for (const Json& one : *found) {
      std::optional<EtcdEntry> entry = etcd_entry_of(one);
      if (!entry) return malformed();
      entries.push_back(std::move(*entry));
    }
  }
  return answer;
}

std::string json_of_texts(std::string_view name, std::string_view value, std::string_view name2,
                          std::string_view value2) {
  const Json json = {{std::string(name), std::string(value)}, {std::string(name2), std::string(value2)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_of_number(std::string_view name, int64_t value) {
  return fmt::format(R"({{"{}":"{}"}})", name, value);
}

std::string json_of_watch(std::string_view key) {
  return fmt::format(R"({{"create_request":{{"key":"{}"}}}})", base64(key));
}

bool is_watch_message(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const Json* result = find(json, "result");
  if (!result || !result->is_object()) return false;
  const Json* canceled = find(*result, "canceled");
  return !canceled || *canceled == false;
}

std::string text_in_json(std::string_view json, const char* name) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const Json* found = find(parsed, name);
  return found && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<GatewayError> gateway_error_in(std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto text = [](const Json* found) {
    return found && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = [](const Json* found) -> std::optional<int64_t> {
    return found && found->is_number_integer() ? std::optional(found->get<int64_t>()) : std::nullopt;
  };
  const Json* error = find(parsed, "error");
  if (error && error->is_object()) {
    std::optional<int64_t> code = number(find(*error, "grpc_code"));
    if (!code) code = number(find(*error, "code"));
    std::string said = text(find(*error, "message"));
    return said.empty() ? std::nullopt : std::optional(GatewayError{code.value_or(0), std::move(said)});
  }
  const std::optional<int64_t> code = number(find(parsed, "code"));
  if (std::string said = text(error); !said.empty()) return GatewayError{code.value_or(0), std::move(said)};
  std::string said = text(find(parsed, "message"));
  if (said.empty() || !code) return std::nullopt;  // any program's JSON may have a message
  return GatewayError{*code, std::move(said)};
}

int64_t number_in_json(std::string_view json, const char* name) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const Json* result = find(parsed, "result");
  const Json* found = find(result ? *result : parsed, name);
  if (found && found->is_number_integer()) return found->get<int64_t>();
  if (!found || !found->is_string()) return 0;
  const auto& text = found->get_ref<const std::string&>();
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace millrace::protocol

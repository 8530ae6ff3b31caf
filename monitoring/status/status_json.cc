#include "monitoring/status/status_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "kernels/base/plain_text.h"
#include "monitoring/status/shard_status_fields.h"

namespace millrace::monitoring {
namespace {

constexpr size_t kTextBytesMax = 2'048;

class StatusWriter {
 public:
  using Json = nlohmann::ordered_json;

  template <typename T>
  void field(const char* key, const T& value) {
    json_[key] = json_of(value);
  }
  template <typename T>
  void field(const char* key, const std::optional<T>& value) {
    if (value) json_[key] = json_of(*value);
  }
  void unless_empty(const char* key, const auto& value) {
    if (!value.empty()) field(key, value);
  }
  void derived(const char* key, double number) { field(key, number); }
  Json take() { return std::move(json_); }

 private:
  static Json json_of(const std::string& text) { return text; }
  /// Replaces infinity, which JSON does not have; a null would read as no value.
  static Json json_of(double value) { return std::isfinite(value) ? value : std::numeric_limits<double>::max(); }
  template <std::integral T>
  static Json json_of(T value) {
    return value;
  }
  static Json json_of(const std::vector<NamedCount>& counts) {
    Json json = Json::object();
    for (const NamedCount& one : counts) json[one.name] = one.count;
    return json;
  }
  template <typename T>
  static Json json_of(const std::vector<T>& items) {
    Json list = Json::array();
    for (const T& item : items) list.push_back(json_of(item));
    return list;
  }
  template <typename Record>
    requires std::is_aggregate_v<Record>
  static Json json_of(const Record& record) {
    StatusWriter writer;
    visit_fields(writer, record);
    return writer.take();
  }

  Json json_ = Json::object();
};

/// Returns an object's member; null where it has none, or the value is no object.
const nlohmann::json* member_of(const nlohmann::json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

class StatusReader {
 public:
  using Json = nlohmann::json;

  explicit StatusReader(const Json& object) : object_(object) {}
  template <typename T>
  void field(const char* key, T& value) {
    if (const Json* found = member_of(object_, key)) read(*found, value);
  }
  void unless_empty(const char* key, auto& value) { field(key, value); }
  void derived(const char*, double) {}

 private:
  static void read(const Json& json, bool& flag) { flag = json.is_boolean() && json.get<bool>(); }
  static void read(const Json& json, double& value) { value = json.is_number() ? json.get<double>() : 0; }
  static void read(const Json& json, std::string& text) {
    text = json.is_string() ? plain_text_of(json.get_ref<const std::string&>(), kTextBytesMax) : "";
  }
  /// No field is negative.
  template <std::integral T>
  static void read(const Json& json, T& number) {
    const bool is_one = json.is_number_unsigned() || (json.is_number_integer() && json.get<int64_t>() >= 0);
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<T>::max());
    number = is_one ? static_cast<T>(std::min(json.get<uint64_t>(), kMax)) : T{0};
  }
  static void read(const Json& json, std::vector<NamedCount>& counts) {
    if (!json.is_object()) return;
    for (const auto& [name, count] : json.items()) {
      if (counts.size() == kStatusListMax) break;
      NamedCount& one = counts.emplace_back();
      one.name = plain_text_of(name, kTextBytesMax);
      read(count, one.count);
    }
  }
  template <typename T>
  static void read(const Json& json, std::vector<T>& items) {
    if (!json.is_array()) return;
    items.resize(std::min(json.size(), kStatusListMax));
    for (size_t at = 0; at < items.size(); ++at) read(json[at], items[at]);
  }
  template <typename T>
  static void read(const Json& json, std::optional<T>& record) {
    if (json.is_object()) read(json, record.emplace());
  }
  template <typename Record>
    requires std::is_aggregate_v<Record>
  static void read(const Json& json, Record& record) {
    StatusReader reader(json);
    visit_fields(reader, record);
  }

  const Json& object_;
};

}  // namespace

std::string status_json(const StatusReport& report) {
  StatusWriter writer;
  visit_fields(writer, report);
  // Names were checked for plain text at admission; replacing instead of throwing costs nothing.
  return writer.take().dump(-1, ' ', false, StatusWriter::Json::error_handler_t::replace);
}

std::optional<StatusReport> read_status(const nlohmann::json& status) {
  StatusReport report;
  StatusReader reader(status);
  visit_fields(reader, report);
  if (report.shard_count > kStatusListMax || report.shard >= report.shard_count) return std::nullopt;
  for (JobStatus& job : report.jobs) job.workers = std::min<uint32_t>(job.workers, kStatusListMax);
  return report;
}

std::vector<SwitchJobStatus> read_switch_jobs(const nlohmann::json& status) {
  const nlohmann::json* lcores = member_of(status, "lcores");
  if (lcores == nullptr || !lcores->is_array() || lcores->empty()) return {};
  std::string address;  // all lcores share one
  StatusReader(lcores->front()).field("address", address);
  std::vector<SwitchJobStatus> jobs;
  StatusReader(status).field("jobs", jobs);
  for (SwitchJobStatus& job : jobs) job.address = address;
  return jobs;
}

}  // namespace millrace::monitoring

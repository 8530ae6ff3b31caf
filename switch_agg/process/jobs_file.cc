#include "switch_agg/process/jobs_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "kernels/base/plain_text.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/io/job_key_file.h"
#include "protocol/datagram/job_numbers.h"
#include "switch_agg/process/jobs_file_position.h"

namespace millrace::switch_agg {
namespace {

using Json = nlohmann::json;
using protocol::WindowIndexCodec;

constexpr size_t kNameBytesMax = 200;
constexpr uint64_t kLeaseSecondsMax = 86'400;

constexpr std::array<std::string_view, 16> kFields = {"name",
                                                      "job",
                                                      "key_file",
                                                      "role",
                                                      "workers",
                                                      "window_indices",
                                                      "slots",
                                                      "lanes",
                                                      "packet_bytes",
                                                      "reselect_k",
                                                      "result_index_codec",
                                                      "lease_seconds",
                                                      "shard",
                                                      "rack",
                                                      "rack_number",
                                                      "racks"};
constexpr std::array<std::pair<std::string_view, Role>, 2> kRoles = {
    {{"reduce", Role::kReduce}, {"combine", Role::kCombine}}};
constexpr std::array<std::pair<std::string_view, WindowIndexCodec>, 3> kIndexCodecs = {
    {{"raw", WindowIndexCodec::kRaw}, {"gap", WindowIndexCodec::kGap}, {"bitmap", WindowIndexCodec::kBitmap}}};

/// Returns a text of the file such that nothing of it reaches the terminal as a command.
std::string printable_of(std::string_view text) { return plain_text_of(text, kNameBytesMax); }

/// Reads the fields of one job; keeps the first fault, and ignores the fields read after it.
class JobReader {
 public:
  JobReader(const Json& object, size_t number) : object_(object), what_(fmt::format("job {} of the list", number + 1)) {
    if (!object_.is_object()) {
      refuse("must be an object, as {\"name\": \"resnet\", \"job\": 7, …}");
      return;
    }
    const auto name = object_.find("name");
    if (name != object_.end() && name->is_string())
      what_ = fmt::format("job '{}'", printable_of(name->get_ref<const std::string&>()));
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(kFields, key) == kFields.end())
        refuse(fmt::format("has a field '{}' that is not known; fields are {}", printable_of(key),
                           fmt::join(kFields, ", ")));
    }
  }

  uint64_t number(const char* field, uint64_t least, uint64_t most, std::optional<uint64_t> otherwise = {}) {
    const Json* value = find(field, otherwise.has_value());
    if (value == nullptr) return otherwise.value_or(0);
    if (!value->is_number_unsigned() || value->get<uint64_t>() < least || value->get<uint64_t>() > most) {
      refuse(fmt::format("\"{}\" must be a number from {} to {}", field, least, most));
      return least;
    }
    return value->get<uint64_t>();
  }

  std::string text(const char* field) {
    const Json* value = find(field, false);
    if (value == nullptr) return {};
    if (!value->is_string() || value->get_ref<const std::string&>().empty() ||
        value->get_ref<const std::string&>().size() > kNameBytesMax) {
      refuse(fmt::format("\"{}\" must be a text of 1 to {} bytes", field, kNameBytesMax));
      return {};
    }
    return value->get<std::string>();
  }

  template <typename T, size_t kSize>
  T word(const char* field, const std::array<std::pair<std::string_view, T>, kSize>& words, T otherwise) {
    const Json* value = find(field, true);
    if (value == nullptr) return otherwise;
    std::string known;
    for (const auto& [name, meaning] : words) {
      if (value->is_string() && value->get_ref<const std::string&>() == name) return meaning;
      known += fmt::format("{}\"{}\"", known.empty() ? "" : " or ", name);
    }
    refuse(fmt::format("\"{}\" must be {}", field, known));
    return otherwise;
  }

  /// Workers' numbers as bits.
  uint64_t workers(const char* field) { return workers_of(field, find(field, false)); }

  /// Lists of workers, one a rack; none where the field is not there.
  std::vector<uint64_t> racks(const char* field) {
    std::vector<uint64_t> all;
    const Json* value = find(field, true);
    if (value == nullptr) return all;
    if (!value->is_array() || value->size() > protocol::kSwitchWorkersMax) {
      refuse(fmt::format("\"{}\" must be a list of at most {} racks", field, protocol::kSwitchWorkersMax));
      return all;
    }
    uint64_t named = 0;
    for (const Json& rack : *value) {
      all.push_back(workers_of(field, &rack));
      if ((named & all.back()) != 0) refuse(fmt::format("\"{}\" must have each worker in one rack only", field));
      named |= all.back();
    }
    return all;
  }

 private:
  uint64_t workers_of(const char* field, const Json* value) {
    uint64_t bits = 0;
    bool right = value != nullptr && value->is_array() && !value->empty();
    for (size_t i = 0; right && i < value->size(); ++i) {
      const Json& one = (*value)[i];
      right = one.is_number_unsigned() && one.get<uint64_t>() < protocol::kSwitchWorkersMax;
      if (right) bits |= uint64_t{1} << one.get<uint64_t>();
    }
    if (!right && value != nullptr)
      refuse(
          fmt::format("\"{}\" must be a list of numbers of workers, 0 to {}", field, protocol::kSwitchWorkersMax - 1));
    return bits;
  }

 public:
  bool has(const char* field) const { return object_.is_object() && object_.contains(field); }
  void refuse(std::string_view why) {
    if (!failed_) failed_ = Error{ErrorCode::kInvalidArgument, fmt::format("{} {}", what_, why)};
  }
  void refuse(Error error) {
    if (!failed_) failed_ = Error{error.code, fmt::format("{}: {}", what_, error.message)};
  }
  const std::optional<Error>& failed() const { return failed_; }

 private:
  const Json* find(const char* field, bool optional) {
    const bool there = has(field);
    if (!there && !optional) refuse(fmt::format("lacks \"{}\"", field));
    return there ? &object_[field] : nullptr;
  }

  const Json& object_;
  std::string what_;
  std::optional<Error> failed_;
};

void read_rack(JobReader& reader, SwitchJob& job) {
  if (job.role != Role::kCombine) {
    for (const char* field : {"shard", "rack", "rack_number"}) {
      if (reader.has(field)) reader.refuse(fmt::format("has a \"{}\", which only \"role\": \"combine\" has", field));
    }
    job.racks = reader.racks("racks");
    return;
  }
  if (reader.has("racks")) reader.refuse("has \"racks\", which only \"role\": \"reduce\" has");
  job.rack = reader.workers("rack");
  job.rack_number = static_cast<uint16_t>(reader.number("rack_number", 0, protocol::kSwitchWorkersMax - 1, 0));
  const std::string shard = reader.text("shard");
  Result<protocol::Endpoint> endpoint = protocol::parse_endpoint(shard);
  if (endpoint) {
    job.shard = *endpoint;
  } else {
    reader.refuse(endpoint.error());
  }
}

Result<SwitchJob> read_job(const Json& object, size_t number, const std::string& folder) {
  constexpr uint64_t kU32 = std::numeric_limits<uint32_t>::max();
  JobReader reader(object, number);
  SwitchJob job;
  job.name = reader.text("name");
  if (!is_plain_text(job.name))
    reader.refuse("has a \"name\" with control characters: it is printed, and a metric's label");
  job.job = static_cast<uint32_t>(reader.number("job", 0, kU32));
  job.role = reader.word("role", kRoles, Role::kReduce);
  job.workers = static_cast<uint32_t>(reader.number("workers", 1, protocol::kSwitchWorkersMax));
  job.window_indices = static_cast<uint32_t>(reader.number("window_indices", 64, protocol::kWindowIndicesMax));
  if (job.window_indices % 64 != 0) reader.refuse("\"window_indices\" must be a multiple of 64");
  job.slots = static_cast<uint32_t>(reader.number("slots", 1, protocol::kSlotsMax));
  job.lanes = static_cast<uint32_t>(reader.number("lanes", 1, protocol::kLanesMax, 1));
  if (job.slots % job.lanes != 0) reader.refuse("\"slots\" must be a multiple of \"lanes\": each has as many");
  if (job.job > kU32 - (job.lanes - 1))
    reader.refuse("needs a number for each of its \"lanes\", and they end at 2^32 - 1");
  job.packet_bytes =
      static_cast<uint32_t>(reader.number("packet_bytes", kAggregatorPacketBytesMin, protocol::kDatagramBytesMax, 0));
  job.reselect_k = reader.number("reselect_k", 0, std::numeric_limits<int64_t>::max(), 0);
  if (job.reselect_k != 0 && job.reselect_k < job.lanes)
    reader.refuse("\"reselect_k\" must be 0 or at least \"lanes\", which share it");
  job.result_codecs.index = reader.word("result_index_codec", kIndexCodecs, job.result_codecs.index);
  job.lease_ns = static_cast<TimeNs>(reader.number("lease_seconds", 1, kLeaseSecondsMax, 10)) * kNsPerS;
  read_rack(reader, job);
  const std::filesystem::path key_file = reader.text("key_file");
  if (reader.failed()) return std::unexpected(*reader.failed());
  const Result<protocol::JobKey> key = protocol::read_job_key((std::filesystem::path(folder) / key_file).string());
  if (!key) {
    reader.refuse(key.error());
    return std::unexpected(*reader.failed());
  }
  job.key = *key;
  return job;
}

/// Of a system call that failed: why, and what to do about it.
std::unexpected<Error> cannot_read(const std::string& path, int reason) {
  std::string_view hint = "give another --jobs";
  if (reason == ENOENT) hint = "give another --jobs, or write it (switch_agg/README.md has an example)";
  if (reason == EACCES || reason == EPERM) hint = "let this program's user read it (chmod, chown)";
  if (reason == EISDIR) hint = "give the file itself";
  return fail(ErrorCode::kIo, fmt::format("cannot read the list of jobs '{}': {}; {}", path,
                                          std::generic_category().message(reason), hint));
}

Result<std::string> read_text(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (!file) return cannot_read(path, errno);
  std::string text(kJobsFileBytesMax + 1, '\0');
  const size_t bytes = std::fread(text.data(), 1, text.size(), file.get());
  if (std::ferror(file.get()) != 0) return cannot_read(path, errno);
  if (bytes > kJobsFileBytesMax) {
    return fail(ErrorCode::kIo, fmt::format("'{}' has more than {} bytes: no list of jobs; give another --jobs", path,
                                            kJobsFileBytesMax));
  }
  text.resize(bytes);
  return text;
}

std::unexpected<Error> refuse_at(size_t line, const Error& error) {
  return fail(error.code, fmt::format("line {}: {}", line, error.message));
}

}  // namespace

Result<std::vector<SwitchJob>> parse_jobs(std::string_view text, const std::string& folder) {
  constexpr std::string_view kForm =
      "must be JSON of the form {\"jobs\": [{…}, …]} (switch_agg/README.md has an example)";
  const Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded())
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}; it {}", printable_of(json_fault(text)), kForm));
  if (!document.is_object() || document.size() != 1 || !document.contains("jobs") || !document["jobs"].is_array())
    return fail(ErrorCode::kInvalidArgument, std::string(kForm));
  std::vector<SwitchJob> jobs;
  for (const Json& object : document["jobs"]) {
    Result<SwitchJob> job = read_job(object, jobs.size(), folder);
    if (!job) return refuse_at(line_of_job(text, jobs.size()), job.error());
    for (const SwitchJob& other : jobs) {
      const protocol::JobNumbers numbers{other.job, other.lanes};
      if (!numbers.overlap({job->job, job->lanes}) && other.name != job->name) continue;
      return refuse_at(
          line_of_job(text, jobs.size()),
          {ErrorCode::kInvalidArgument,
           fmt::format("jobs '{}' and '{}' have the same name or number: give each its own (a job of several lanes has "
                       "as many numbers, from \"job\" on)",
                       other.name, job->name)});
    }
    jobs.push_back(std::move(*job));
  }
  return jobs;
}

Result<std::vector<SwitchJob>> read_jobs_file(const std::string& path) {
  const Result<std::string> text = read_text(path);
  if (!text) return std::unexpected(text.error());
  Result<std::vector<SwitchJob>> jobs = parse_jobs(*text, std::filesystem::path(path).parent_path().string());
  if (!jobs) return fail(jobs.error().code, fmt::format("{}: {}", path, jobs.error().message));
  return jobs;
}

}  // namespace millrace::switch_agg

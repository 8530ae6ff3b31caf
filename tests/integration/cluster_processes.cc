#include "tests/integration/cluster_processes.h"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/tree_paths.h"

namespace millrace::testing {
namespace {

void take_line(const std::string& line, WorkerLog& log) {
  log.lines.push_back(line);
  std::istringstream words(line);
  std::string kind;
  words >> kind;
  if (kind == "update") {
    uint64_t step = 0, begin = 0, mask = 0, count = 0;
    std::string broken;
    words >> step >> begin >> mask >> count >> broken;
    log.contributors[{step, begin}] = mask;
    log.broken = log.broken || !broken.empty();
  } else if (kind == "weights") {
    words >> log.weights;
  } else if (kind == "finished") {
    log.finished = true;
  } else if (kind == "error") {
    log.error = line.substr(kind.size() + 1);
  }
}

}  // namespace

void ClusterProcesses::SetUp() {
  std::string name = (std::filesystem::temp_directory_path() / "millrace-integration-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  directory_ = name;
}

void ClusterProcesses::TearDown() {
  if (HasFailure()) {
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      if (entry.path().extension() != ".log") continue;
      const std::string text = text_of(entry.path().filename().string());
      std::printf("--- %s\n%s\n", entry.path().filename().c_str(),
                  text.substr(text.size() > 4'000 ? text.size() - 4'000 : 0).c_str());
    }
  }
  shards_.clear();
  std::filesystem::remove_all(directory_);
}

launch::ChildProcess ClusterProcesses::spawn_server(uint32_t shard, uint32_t shards, const std::string& listen) {
  launch::SpawnOptions options;
  options.argv = {built_file("bin/millrace-server"),
                  "--json",
                  "--table",
                  path("table.db"),
                  "--shard",
                  std::to_string(shard),
                  "--shards",
                  std::to_string(shards),
                  "--listen",
                  listen,
                  "--drain",
                  "2",
                  "--http",
                  "127.0.0.1:0"};
  options.argv.insert(options.argv.end(), server_flags_.begin(), server_flags_.end());
  options.stderr_path = path("shard-" + std::to_string(logs_++) + ".log");
  auto child = launch::ChildProcess::spawn(options);
  if (!child) {
    ADD_FAILURE() << child.error().message;
    std::abort();
  }
  return std::move(*child);
}

void ClusterProcesses::start_shard(uint32_t shard, uint32_t shards, const std::string& listen) {
  if (shards_.size() < shards) shards_.resize(shards);
  if (addresses_.size() < shards) addresses_.resize(shards);
  if (http_addresses_.size() < shards) http_addresses_.resize(shards);
  shards_[shard] = std::make_unique<launch::ChildProcess>(spawn_server(shard, shards, listen));
  const auto line = shards_[shard]->read_line(kPatienceMs);
  ASSERT_TRUE(line.has_value()) << line.error().message;
  addresses_[shard] = nlohmann::json::parse(*line).value("address", "");
  ASSERT_FALSE(addresses_[shard].empty()) << *line;
  http_addresses_[shard] = nlohmann::json::parse(*line).value("http", "");
}

void ClusterProcesses::start_shards(uint32_t shards) {
  for (uint32_t shard = 0; shard < shards; ++shard) ASSERT_NO_FATAL_FAILURE(start_shard(shard, shards));
}

std::string ClusterProcesses::addresses() const {
  std::string text;
  for (const std::string& address : addresses_) text += (text.empty() ? "" : ",") + address;
  return text;
}

launch::ChildProcess ClusterProcesses::start_worker(uint32_t worker, uint32_t workers, uint64_t steps,
                                                    const std::vector<std::string>& settings) {
  launch::SpawnOptions options;
  options.argv = {built_file("tests/integration/test_worker"), addresses(), std::to_string(worker),
                  std::to_string(workers), std::to_string(steps)};
  options.argv.insert(options.argv.end(), settings.begin(), settings.end());
  options.stderr_path = path("worker-" + std::to_string(worker) + "-" + std::to_string(logs_++) + ".log");
  auto child = launch::ChildProcess::spawn(options);
  if (!child) {
    ADD_FAILURE() << child.error().message;
    std::abort();
  }
  return std::move(*child);
}

std::string ClusterProcesses::wait_for_line(launch::ChildProcess& process, const std::string& beginning,
                                            WorkerLog* log) {
  for (;;) {
    const auto line = process.read_line(kPatienceMs);
    if (!line) {
      ADD_FAILURE() << "while waiting for '" << beginning << "': " << line.error().message;
      return "";
    }
    if (log != nullptr) take_line(*line, *log);
    if (line->starts_with(beginning)) return *line;
    if (line->starts_with("error")) {
      ADD_FAILURE() << "while waiting for '" << beginning << "': " << *line;
      return "";
    }
  }
}

void ClusterProcesses::read_to_end(launch::ChildProcess& process, WorkerLog& log) {
  for (auto line = process.read_line(kPatienceMs);; line = process.read_line(kPatienceMs)) {
    if (!line) {
      EXPECT_EQ(line.error().code, ErrorCode::kUnavailable) << line.error().message;
      break;
    }
    take_line(*line, log);
  }
  const auto report = process.wait(kPatienceMs);
  ASSERT_TRUE(report.has_value()) << report.error().message;
  log.exit_code = report->exit_code;
}

std::string ClusterProcesses::text_of(const std::string& name) const {
  std::ifstream file(path(name));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string replayed_weights(const WorkerLog& log, uint64_t dimension, float begin) {
  std::vector<float> weights(dimension, begin);
  for (auto piece = log.contributors.begin(); piece != log.contributors.end(); ++piece) {
    const auto [step, first] = piece->first;
    const auto next = std::next(piece);
    const uint64_t end = next != log.contributors.end() && next->first.first == step ? next->first.second : dimension;
    for (uint64_t i = first; i < end; ++i) {
      weights[i] -= static_cast<float>(piece->second * (1 + (step * 7 + i * 3) % 5));
    }
  }
  uint64_t hash = 0xCBF29CE484222325u;
  for (float value : weights) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3u;
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace millrace::testing

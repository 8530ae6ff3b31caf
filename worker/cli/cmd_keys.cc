#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "monitoring/standard_streams.h"
#include "protocol/datagram/io/job_key_file.h"
#include "protocol/keys/key_files.h"
#include "worker/cli/commands.h"
#include "worker/program/flag_range.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"

namespace millrace::cli {

using program::fail_with;
using program::not_empty;
using program::Outcome;

namespace {

struct NewKeysFlags {
  std::vector<std::string> names;
  std::string folder = "keys";
  std::string until;
  bool json = false;
};

Outcome run_new_keys(const NewKeysFlags& flags) {
  const protocol::KeyEnd end = protocol::key_end_of_text(flags.until);
  if (end && *end <= protocol::present_day())
    return fail_with({ErrorCode::kInvalidArgument, "--until " + flags.until + " is not after the present day, UTC"});
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& name : flags.names) {
    const auto files = protocol::write_new_keys(flags.folder, name, end);
    if (!files) return fail_with(files.error());
    const auto key = protocol::read_public_key(files->public_path);
    if (!key) return fail_with(key.error());
    rows.push_back({{"name", name},
                    {"secret", files->secret_path},
                    {"public", files->public_path},
                    {"key", protocol::key_digits(*key)}});
    if (end) rows.back()["until"] = flags.until;
    if (!flags.json) fmt::print("{}: secret {}, public {}\n", name, files->secret_path, files->public_path);
  }
  if (flags.json) fmt::print("{}\n", program::json_text(nlohmann::json{{"keys", rows}}));
  return {};
}

Outcome run_show_key(const std::string& path, bool json) {
  const auto pair = protocol::read_secret_key(path);
  if (!pair) return fail_with(pair.error());
  const std::string digits = protocol::key_digits(pair->public_key);
  if (json) {
    fmt::print("{}\n", program::json_text(nlohmann::json{{"key", digits}}));
  } else {
    fmt::print("{}", protocol::public_key_text(pair->public_key));
  }
  return {};
}

void add_folder(CLI::App& app, std::string& folder) {
  app.add_option("--folder", folder, "where the files are written; made if it is absent")
      ->type_name("FOLDER")
      ->capture_default_str()
      ->check(not_empty());
}

program::Command add_new_keys(CLI::App& keys) {
  auto flags = std::make_shared<NewKeysFlags>();
  CLI::App* app = program::add_command(keys, "new", "draws key pairs and writes each into two files");
  app->add_option("names", flags->names, "of the pairs: letters, digits, dots, dashes and underscores")->required();
  add_folder(*app, flags->folder);
  app->add_option("--until", flags->until,
                  "first day, as 2027-11-29 UTC, on which shards refuse the keys; default: no end")
      ->type_name("DAY")
      ->check([](const std::string& text) {
        return protocol::key_end_of_text(text) ? std::string() : "'" + text + "' is no day: write it as 2027-11-29";
      });
  app->add_flag("--json", flags->json, "the files and the public keys as one JSON object");
  app->footer(
      "FOLDER/NAME.key has the secret, for its owner alone (mode 0600): only the process of that name needs it.\n"
      "FOLDER/NAME.pub has the public key, and its end. Existing files are never replaced.\n\n"
      "Examples:\n"
      "  millrace keys new cluster worker-0 worker-1\n"
      "  millrace keys new --until 2027-11-29 guest\n"
      "  millrace-server --key keys/cluster.key --allowed-keys keys --listen 0.0.0.0:7600 --advertise node1:7600 ...\n"
      "  millrace train --key keys/worker-0.key --server-key keys/cluster.pub --servers node1:7600 ...");
  return {app, [flags] { return run_new_keys(*flags); }};
}

program::Command add_show_key(CLI::App& keys) {
  struct Flags {
    std::string path;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* app = program::add_command(keys, "public", "prints the public key of a secret key's file");
  app->add_option("file", flags->path, "of the secret key")->required()->type_name("FILE");
  app->add_flag("--json", flags->json, "as one JSON object");
  app->footer(
      "The output is the text of a NAME.pub file, without the end that keys new --until has written.\n\n"
      "Examples:\n"
      "  millrace keys public keys/worker-0.key > worker-0.pub\n"
      "  millrace keys public --json keys/worker-0.key");
  return {app, [flags] { return run_show_key(flags->path, flags->json); }};
}

program::Command add_job_keys(CLI::App& keys) {
  struct Flags {
    std::vector<uint32_t> jobs;
    std::string folder = "keys";
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* app = program::add_command(keys, "job", "draws keys of jobs of path switch and writes each into a file");
  app->add_option("jobs", flags->jobs, "numbers of the jobs at their switch")->required()->type_name("NUMBER");
  add_folder(*app, flags->folder);
  app->add_flag("--json", flags->json, "the files as one JSON object");
  app->footer(
      "FOLDER/NUMBER.key has the secret of a job's datagrams (mode 0600): its switch, shard 0 and its workers need "
      "it.\n"
      "Existing files are never replaced.\n\n"
      "Examples:\n"
      "  millrace keys job 7\n"
      "  millrace-server --table /tmp/millrace.db --datagrams 127.0.0.1:0 --job-keys keys\n"
      "  millrace train --path switch --switch-job 7 --switch-key keys/7.key ...");
  return {app, [flags]() -> Outcome {
            nlohmann::json rows = nlohmann::json::array();
            for (const uint32_t job : flags->jobs) {
              const auto path = protocol::write_new_job_key(flags->folder, job);
              if (!path) return fail_with(path.error());
              rows.push_back({{"job", job}, {"secret", *path}});
              if (!flags->json) fmt::print("job {}: secret {}\n", job, *path);
            }
            if (flags->json) fmt::print("{}\n", program::json_text(nlohmann::json{{"keys", rows}}));
            return {};
          }};
}

}  // namespace

program::Command add_keys_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("keys", "makes the keys of a cluster and of its workers");
  app->require_subcommand(1);
  const program::Command make = add_new_keys(*app);
  const program::Command show = add_show_key(*app);
  const program::Command job = add_job_keys(*app);
  app->footer("Each has its own help: millrace keys new --help");
  return {app, [make, show, job] {
            if (make.app->parsed()) return make.run();
            return show.app->parsed() ? show.run() : job.run();
          }};
}

}  // namespace millrace::cli

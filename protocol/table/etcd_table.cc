#include "protocol/table/etcd_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/table/cluster_notes.h"
#include "protocol/table/etcd_client.h"
#include "protocol/table/etcd_poller.h"
#include "protocol/table/etcd_values.h"
#include "protocol/table/job_record.h"
#include "protocol/table/lock_wait_policy.h"
#include "protocol/table/table_rules.h"

/// The membership table in etcd. Every write is one transaction that compares versions, so it is a compare-and-swap.
///
/// The version of a job's key is the job's epoch: both begin with 1, and every swap adds 1 to both. In the same way the
/// version of a shard's key is its incarnation. Keys of jobs end with a tag that no other swap has, by which a swap
/// that got no answer finds itself again.
namespace millrace::protocol {
namespace {

/// Raised with every change of the keys (protocol/wire/versions.md).
constexpr std::string_view kFormat = "2";
constexpr size_t kTagBytes = 16;
/// Time without an answer after which the polled counter is old.
constexpr TimeNs kPolledAgeMax = kNsPerS;

class EtcdTable : public MembershipTable {
 public:
  explicit EtcdTable(const EtcdOptions& options)
      : options_(options),
        health_(std::make_shared<EtcdHealth>()),
        client_(options, health_),
        wait_policy_(options.wait_ms),
        tag_(random_identity()) {}

  Status open();

  Result<uint64_t> start_shard(uint32_t shard, uint32_t shard_count, std::string_view address,
                               std::string_view datagrams) override;
  Result<uint64_t> take_over_shard(uint32_t shard, uint64_t expected, std::string_view address,
                                   std::string_view datagrams) override;
  Status hold_lease(uint32_t shard, uint64_t incarnation) override;
  Status hold_spare_lease() override;
  Status hold_leaving_lease(uint32_t shard, uint64_t incarnation) override;
  Result<ClusterView> read_cluster() override;
  Result<bool> set_drain(uint32_t shard, uint64_t incarnation, const std::optional<DrainNote>& note) override;
  Result<std::optional<DrainNote>> read_drain(uint32_t shard) override;
  Result<std::vector<ShardEntry>> shard_map() override;
  Result<std::optional<JobRecord>> read_job(std::string_view name) override;
  Result<std::optional<JobRecord>> read_job(uint64_t job) override;
  Result<JobRecord> create_job(std::string_view name, ByteSpan spec, Path path) override;
  Result<bool> compare_and_swap(uint64_t expected_epoch, const JobRecord& next) override;
  Result<std::vector<JobRecord>> open_jobs() override;
  Result<bool> remove_cluster() override;
  Result<uint64_t> change_counter() override;
  Result<uint64_t> polled_change_counter() override;

 private:
  std::string key(std::string_view name) const { return fmt::format("{}/{}", options_.prefix, name); }
  std::string key_of_shard(uint32_t shard) const { return key(fmt::format("shard/{:04}", shard)); }
  std::string key_of_name(std::string_view name) const { return key(fmt::format("name/{}", name)); }
  std::string key_of_job(std::string_view kind, uint64_t job) const { return key(fmt::format("{}/{:020}", kind, job)); }
  void put_change(EtcdTransaction::Operations& operations) const { operations.put(key("changes"), "changed"); }

  std::unexpected<Error> error(Error error) const {
    error.message = fmt::format("membership table in etcd ({}): {}", options_.prefix, error.message);
    return std::unexpected(std::move(error));
  }
  std::unexpected<Error> damaged(std::string_view what) const {
    return error({ErrorCode::kMalformed, fmt::format("{} is damaged", what)});
  }

  /// Returns until when a call that begins now may wait. Errors  timeout: it may not wait at all.
  Result<TimeNs> deadline();
  static TimeNs open_deadline() { return monotonic_now_ns() + kTableOpenWaitMs * kNsPerMs; }
  Result<EtcdClient::Answer> run(const EtcdTransaction& transaction, TimeNs deadline);
  /// Runs a transaction iff the table is the one that this object opened. Errors  conflict: it is another one.
  Result<EtcdClient::Answer> run_here(EtcdTransaction& transaction, TimeNs deadline);
  bool is_own(const EtcdEntry* identity) const { return identity && text_of(identity->value) == identity_; }
  std::unexpected<Error> another_table() const { return error({ErrorCode::kConflict, std::string(kAnotherTable)}); }
  std::unexpected<Error> older_table() const { return error({ErrorCode::kStale, std::string(kOlderTable)}); }
  Result<std::optional<JobRecord>> read_job_until(uint64_t job, TimeNs deadline);
  Result<std::optional<JobRecord>> read_named(std::string_view name, TimeNs deadline);
  Result<JobRecord> record_of(const EtcdEntry& entry) const;
  Result<std::vector<ShardEntry>> map_of(uint64_t count, const std::vector<EtcdEntry>& entries) const;
  Result<uint64_t> count_of(const EtcdEntry* entry) const;
  /// Creates the job unless one of the name is open or another process was faster: empty.
  Result<std::optional<JobRecord>> try_to_create(std::string_view name, ByteSpan spec, Path path, TimeNs deadline);
  Result<bool> swap_outcome(uint64_t expected_epoch, uint64_t job, const EtcdClient::Answer& answer,
                            ByteSpan tag) const;

  EtcdPoller& poller();

  /// Returns the tag of the next swap: no other swap of any process has it.
  ByteBuffer next_tag();
  static ByteBuffer tagged(const ByteBuffer& tag, const JobRecord& record);

  EtcdOptions options_;
  std::shared_ptr<EtcdHealth> health_;
  EtcdClient client_;
  LockWaitPolicy wait_policy_;
  uint64_t tag_;
  uint64_t swaps_ = 0;
  std::string identity_;                ///< of the table
  uint64_t revision_ = 0;               ///< the largest one of the key `changes` that change_counter() has read
  std::unique_ptr<EtcdPoller> poller_;  ///< from the first poll on
};

Result<TimeNs> EtcdTable::deadline() {
  const TimeNs now = monotonic_now_ns();
  const uint32_t wait_ms = wait_policy_.wait_ms(now);
  if (wait_ms == 0 || (poller_ && !health_->answers())) {
    return error({ErrorCode::kTimeout, fmt::format("no member has answered for {:.1f} s; it is asked again",
                                                   static_cast<double>(now - health_->asked_at.load()) / 1e9)});
  }
  return now + wait_ms * kNsPerMs;
}

Result<EtcdClient::Answer> EtcdTable::run(const EtcdTransaction& transaction, TimeNs deadline) {
  Result<EtcdClient::Answer> answer = client_.transact(transaction, deadline);
  if (answer || answer.error().code != ErrorCode::kTimeout) {
    wait_policy_.had_it();
  } else {
    wait_policy_.waited_in_vain(monotonic_now_ns());
  }
  if (!answer) return error(answer.error());
  return answer;
}

Result<EtcdClient::Answer> EtcdTable::run_here(EtcdTransaction& transaction, TimeNs deadline) {
  transaction.if_value(key("identity"), identity_);
  transaction.otherwise().get(key("identity"));  // the last one
  Result<EtcdClient::Answer> answer = run(transaction, deadline);
  if (!answer || answer->etcd.succeeded || answer->etcd.ranges.empty()) return answer;
  if (!is_own(first_of(answer->etcd, answer->etcd.ranges.size() - 1))) return another_table();
  return answer;
}

Status EtcdTable::open() {
  identity_ = fmt::format("{:016x}", random_identity());
  EtcdTransaction transaction;
  transaction.if_version(key("format"), 0);
  transaction.then().put(key("format"), kFormat).put(key("identity"), identity_);
  transaction.otherwise().get(key("format")).get(key("identity"));
  const auto answer = run(transaction, open_deadline());
  if (!answer) return std::unexpected(answer.error());
  if (answer->etcd.succeeded) return {};
  const EtcdEntry* format = first_of(answer->etcd, 0);
  if (!format) return damaged("the key 'format'");
  if (text_of(format->value) == kFormat) {
    const EtcdEntry* identity = first_of(answer->etcd, 1);
    if (!identity) return damaged("the key 'identity'");
    identity_ = text_of(identity->value);
    return {};
  }
  return error({ErrorCode::kUnsupported,
                fmt::format("written by another version of Millrace (this build knows format {}): name another prefix, "
                            "etcd://HOST:PORT/PREFIX",
                            kFormat)});
}

Result<uint64_t> EtcdTable::start_shard(uint32_t shard, uint32_t shard_count, std::string_view address,
                                        std::string_view datagrams) {
  if (Status s = check_start_shard(shard, shard_count, address, datagrams); !s) return std::unexpected(s.error());
  const TimeNs until = open_deadline();
  const std::string count_text = fmt::format("{}", shard_count);
  // Twice: the first start of all makes the count, unless another one does so first.
  for (bool first_start : {false, true, false}) {
    EtcdTransaction transaction;
    if (first_start) {
      transaction.if_version(key("shard_count"), 0);
    } else {
      transaction.if_value(key("shard_count"), count_text);
    }
    transaction.then()
        .put(key("shard_count"), count_text)
        .put(key_of_shard(shard), value_of_start(shard, address, datagrams))
        .get(key_of_shard(shard));
    put_change(transaction.then());
    transaction.otherwise().get(key("shard_count"));
    const auto answer = run_here(transaction, until);
    if (!answer) return std::unexpected(answer.error());
    if (answer->etcd.succeeded) {
      const EtcdEntry* entry = first_of(answer->etcd, 2);
      if (!entry) return damaged("the answer to a start");
      return entry->version;
    }
    const EtcdEntry* known = first_of(answer->etcd, 0);
    const Result<uint64_t> count = count_of(known);
    if (!count) return std::unexpected(count.error());
    if (known && *count != shard_count) return std::unexpected(shard_count_error(*count, shard_count));
  }
  return damaged("the key 'shard_count'");
}

Result<uint64_t> EtcdTable::count_of(const EtcdEntry* entry) const {
  if (!entry) return 0;
  const std::optional<uint64_t> count = number_of(text_of(entry->value));
  if (!count || *count == 0 || *count > kShardsMax) return damaged("the key 'shard_count'");
  return *count;
}

Result<std::vector<ShardEntry>> EtcdTable::map_of(uint64_t count, const std::vector<EtcdEntry>& entries) const {
  std::vector<ShardEntry> shards(count);
  const size_t prefix_bytes = key("shard/").size();
  for (const EtcdEntry& entry : entries) {
    const std::optional<uint64_t> shard = number_of(std::string_view(entry.key).substr(prefix_bytes));
    std::optional<ShardEntry> start;
    if (shard && *shard < kShardsMax) start = start_of_value(static_cast<uint32_t>(*shard), text_of(entry.value));
    if (!start) return damaged(fmt::format("the key '{}'", entry.key));
    if (*shard >= count) continue;
    shards[*shard] = std::move(*start);
    shards[*shard].incarnation = entry.version;
  }
  return shards;
}

Result<std::vector<ShardEntry>> EtcdTable::shard_map() {
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  EtcdTransaction transaction;
  transaction.then().get(key("shard_count")).get_all(key("shard/"));
  const auto answer = run(transaction, *until);
  if (!answer) return std::unexpected(answer.error());
  if (answer->etcd.ranges.size() != 2) return damaged("the answer");
  const Result<uint64_t> count = count_of(first_of(answer->etcd, 0));
  if (!count) return std::unexpected(count.error());
  return map_of(*count, answer->etcd.ranges[1]);
}

Result<JobRecord> EtcdTable::record_of(const EtcdEntry& entry) const {
  if (entry.value.size() < kTagBytes) return damaged(fmt::format("the key '{}'", entry.key));
  Result<JobRecord> record = decode_job_record(ByteSpan(entry.value).subspan(kTagBytes));
  if (!record) return error(record.error());
  return record;
}

Result<std::optional<JobRecord>> EtcdTable::read_job(std::string_view name) {
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  return read_named(name, *until);
}

Result<std::optional<JobRecord>> EtcdTable::read_named(std::string_view name, TimeNs deadline) {
  EtcdTransaction transaction;
  transaction.then().get(key_of_name(name));
  const auto answer = run(transaction, deadline);
  if (!answer) return std::unexpected(answer.error());
  const EtcdEntry* entry = first_of(answer->etcd, 0);
  if (!entry) return std::optional<JobRecord>();
  const std::optional<uint64_t> job = number_of(text_of(entry->value));
  if (!job) return damaged(fmt::format("the key '{}'", entry->key));
  Result<std::optional<JobRecord>> record = read_job_until(*job, deadline);
  // Finished between the two reads: at that moment no job of the name was open.
  if (record && *record && (*record)->membership.finished) return std::optional<JobRecord>();
  return record;
}

Result<std::optional<JobRecord>> EtcdTable::read_job(uint64_t job) {
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  return read_job_until(job, *until);
}

Result<std::optional<JobRecord>> EtcdTable::read_job_until(uint64_t job, TimeNs deadline) {
  EtcdTransaction transaction;
  transaction.then().get(key_of_job("job", job)).get(key_of_job("spec", job)).get(key_of_job("done", job));
  const auto answer = run(transaction, deadline);
  if (!answer) return std::unexpected(answer.error());
  const EtcdEntry* open = first_of(answer->etcd, 0);
  const EtcdEntry* spec = first_of(answer->etcd, 1);
  const EtcdEntry* done = first_of(answer->etcd, 2);
  if (!open && !done) return std::optional<JobRecord>();
  Result<JobRecord> record = record_of(open ? *open : *done);
  if (!record) return std::unexpected(record.error());
  if (!open) return std::optional(std::move(*record));
  if (!spec) return damaged(fmt::format("job {}", job));
  if (open->version != record->membership.epoch) {
    return error({ErrorCode::kMalformed,
                  fmt::format("job {} has epoch {} and version {}: keys were copied without their versions; restore "
                              "etcd by 'etcdutl snapshot restore' (3.4: 'etcdctl'), or name another prefix",
                              job, record->membership.epoch, open->version)});
  }
  record->spec = spec->value;
  return std::optional(std::move(*record));
}

Result<JobRecord> EtcdTable::create_job(std::string_view name, ByteSpan spec, Path path) {
  if (Status s = check_create_job(name, spec); !s) return std::unexpected(s.error());
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  // Every failed attempt means that another process created a job or started a shard.
  for (;;) {
    Result<std::optional<JobRecord>> open = read_named(name, *until);
    if (!open) return std::unexpected(open.error());
    if (*open) return std::move(**open);
    Result<std::optional<JobRecord>> made = try_to_create(name, spec, path, *until);
    if (!made) return std::unexpected(made.error());
    if (*made) return std::move(**made);
  }
}

Result<std::optional<JobRecord>> EtcdTable::try_to_create(std::string_view name, ByteSpan spec, Path path,
                                                          TimeNs deadline) {
  EtcdTransaction look;
  look.then().get(key("last_job")).get(key("shard_count")).get_all(key("shard/"));
  const auto seen = run(look, deadline);
  if (!seen) return std::unexpected(seen.error());
  if (seen->etcd.ranges.size() != 3) return damaged("the answer");
  const EtcdEntry* last = first_of(seen->etcd, 0);
  const EtcdEntry* counted = first_of(seen->etcd, 1);
  const std::optional<uint64_t> last_job = last ? number_of(text_of(last->value)) : 0;
  const Result<uint64_t> count = count_of(counted);
  if (!count) return std::unexpected(count.error());
  if (!last_job) return damaged("the key 'last_job'");
  Result<std::vector<ShardEntry>> shards = map_of(*count, seen->etcd.ranges[2]);
  if (!shards) return std::unexpected(shards.error());

  const uint64_t place = *last_job + 1;
  const Result<uint64_t> number = draw_job_number(place);
  if (!number) return damaged("the key 'last_job'");
  const uint64_t job = *number;
  JobRecord record = new_job_record(name, spec, path, job, std::move(*shards));
  EtcdTransaction create;
  create.if_version(key_of_name(name), 0)
      .if_mod_revision(key("last_job"), last ? last->mod_revision : 0)
      .if_mod_revision(key("shard_count"), counted ? counted->mod_revision : 0);
  create.then()
      .put(key_of_name(name), fmt::format("{}", job))
      .put(key("last_job"), fmt::format("{}", place))
      .put(key_of_job("job", job), ByteSpan(tagged(next_tag(), record)))
      .put(key_of_job("spec", job), spec);
  put_change(create.then());
  if (const uint64_t first = first_kept_job(place); first > 0)
    create.then().remove_range(key_of_job("done", 0), key_of_job("done", first));
  const auto created = run_here(create, deadline);
  if (!created) return std::unexpected(created.error());
  if (!created->etcd.succeeded) return std::optional<JobRecord>();
  return std::optional(std::move(record));
}

Result<bool> EtcdTable::compare_and_swap(uint64_t expected_epoch, const JobRecord& next) {
  MILLRACE_CHECK(next.membership.epoch == expected_epoch + 1, next.membership.epoch, expected_epoch);
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  const uint64_t job = next.membership.job;
  const ByteBuffer tag = next_tag();
  EtcdTransaction swap;
  swap.if_version(key_of_job("job", job), expected_epoch);
  if (next.membership.finished) {
    swap.then()
        .remove(key_of_job("job", job))
        .remove(key_of_job("spec", job))
        .remove(key_of_name(next.name))
        .put(key_of_job("done", job), ByteSpan(tagged(tag, next)));
  } else {
    swap.then().put(key_of_job("job", job), ByteSpan(tagged(tag, next)));
  }
  put_change(swap.then());
  swap.otherwise().get(key_of_job("job", job)).get(key_of_job("done", job));
  const auto answer = run_here(swap, *until);
  if (!answer) return std::unexpected(answer.error());
  if (answer->etcd.succeeded) return true;
  return swap_outcome(expected_epoch, job, *answer, tag);
}

/// Judges a swap whose comparison failed: an earlier attempt of it may have taken effect.
Result<bool> EtcdTable::swap_outcome(uint64_t expected_epoch, uint64_t job, const EtcdClient::Answer& answer,
                                     ByteSpan tag) const {
  const EtcdEntry* open = first_of(answer.etcd, 0);
  const EtcdEntry* entry = open ? open : first_of(answer.etcd, 1);
  if (!entry) return std::unexpected(unknown_job_error(job));
  if (!answer.repeated) return false;
  const Result<JobRecord> record = record_of(*entry);
  if (!record) return std::unexpected(record.error());
  if (record->membership.epoch <= expected_epoch) return false;
  const bool next_epoch = record->membership.epoch == expected_epoch + 1;
  if (next_epoch) return std::ranges::equal(ByteSpan(entry->value).first(kTagBytes), tag);
  return error({ErrorCode::kTimeout,
                fmt::format("a change of job {} got no answer, and the job has changed since: it is read again", job)});
}

Result<uint64_t> EtcdTable::change_counter() {
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  EtcdTransaction transaction;
  const uint64_t known = poller_ ? std::max(revision_, poller_->mod_revision()) : revision_;
  transaction.then().get(key("changes")).get(key("identity"));
  const auto answer = run(transaction, *until);
  if (!answer) return std::unexpected(answer.error());
  if (!is_own(first_of(answer->etcd, 1))) return another_table();
  const EtcdEntry* changes = first_of(answer->etcd, 0);
  const uint64_t counter = changes ? changes->mod_revision : 0;
  if (counter < known) return older_table();
  revision_ = counter;
  if (poller_) poller_->note(counter);
  return counter;
}

Result<uint64_t> EtcdTable::polled_change_counter() {
  if (!poller_) {
    poller();
    return change_counter();
  }
  const TimeNs age = monotonic_now_ns() - health_->asked_at.load();
  if (age > kPolledAgeMax) {
    return error({ErrorCode::kTimeout,
                  fmt::format("no member has answered for {:.1f} s; jobs go on, and their members stay as they are",
                              static_cast<double>(age) / 1e9)});
  }
  if (poller_->found() == EtcdPoller::Found::kAnother) return another_table();
  if (poller_->found() == EtcdPoller::Found::kOlder) return older_table();
  return poller_->mod_revision();
}

EtcdPoller& EtcdTable::poller() {
  if (!poller_)
    poller_ = std::make_unique<EtcdPoller>(options_, health_, EtcdWatched{key("changes"), key("identity"), identity_});
  return *poller_;
}

Result<uint64_t> EtcdTable::take_over_shard(uint32_t shard, uint64_t expected, std::string_view address,
                                            std::string_view datagrams) {
  const Result<std::vector<ShardEntry>> map = shard_map();
  if (!map) return std::unexpected(map.error());
  if (Status s = check_start_shard(shard, static_cast<uint32_t>(map->size()), address, datagrams); !s)
    return std::unexpected(s.error());
  EtcdTransaction transaction;
  transaction.if_version(key_of_shard(shard), expected);
  const std::string value = value_of_start(shard, address, datagrams);
  transaction.then().put(key("shard_count"), fmt::format("{}", map->size())).put(key_of_shard(shard), value);
  put_change(transaction.then());
  transaction.otherwise().get(key_of_shard(shard));
  const auto answer = run_here(transaction, open_deadline());
  if (!answer) return std::unexpected(answer.error());
  if (answer->etcd.succeeded) return expected + 1;
  // An earlier attempt may have been this one: no other process has its address.
  const EtcdEntry* entry = first_of(answer->etcd, 0);
  const bool own = answer->repeated && entry && entry->version == expected + 1 && text_of(entry->value) == value;
  return own ? expected + 1 : 0;
}

Status EtcdTable::hold_lease(uint32_t shard, uint64_t incarnation) {
  poller().hold({key(key_of_lease(shard)), encode_process_note(note_), key_of_shard(shard), incarnation});
  return {};
}

Status EtcdTable::hold_spare_lease() {
  const std::string own = key(key_of_spare(tag_));
  poller().hold({own, encode_process_note(note_), own, 0});
  return {};
}

Status EtcdTable::hold_leaving_lease(uint32_t shard, uint64_t incarnation) {
  poller().hold({key(key_of_leaving(shard)), encode_process_note(note_), key_of_shard(shard), incarnation});
  return {};
}

Result<ClusterView> EtcdTable::read_cluster() {
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  EtcdTransaction transaction;
  transaction.then().get(key("shard_count"));
  for (const char* kind : {"shard/", "lease/", "leaving/", "drain/", "spare/"}) transaction.then().get_all(key(kind));
  const auto answer = run(transaction, *until);
  if (!answer) return std::unexpected(answer.error());
  if (answer->etcd.ranges.size() != 6) return damaged("the answer");
  const Result<uint64_t> count = count_of(first_of(answer->etcd, 0));
  if (!count) return std::unexpected(count.error());
  Result<std::vector<ShardEntry>> map = map_of(*count, answer->etcd.ranges[1]);
  if (!map) return std::unexpected(map.error());
  ClusterView view;
  for (ShardEntry& entry : *map) view.shards.emplace_back().entry = std::move(entry);
  // Returns the shard that a note is about; nullptr: it is none of the cluster's.
  const auto shard_of = [&](const EtcdEntry& entry) -> ClusterView::Shard* {
    const auto number = number_of(std::string_view(entry.key).substr(entry.key.rfind('/') + 1));
    return number && *number < view.shards.size() ? &view.shards[*number] : nullptr;
  };
  for (const size_t leases : {3, 2}) {  // the note of a process that holds the lease comes last
    for (const EtcdEntry& entry : answer->etcd.ranges[leases]) {
      ClusterView::Shard* shard = shard_of(entry);
      if (!shard) continue;
      (leases == 2 ? shard->held : shard->leaving) = true;
      shard->process = decode_process_note(text_of(entry.value));
    }
  }
  for (const EtcdEntry& entry : answer->etcd.ranges[4]) {
    ClusterView::Shard* shard = shard_of(entry);
    if (shard) shard->drain = decode_drain_note(text_of(entry.value), shard->entry.incarnation);
  }
  for (const EtcdEntry& entry : answer->etcd.ranges[5])
    view.spares.push_back(decode_process_note(text_of(entry.value)));
  return view;
}

Result<bool> EtcdTable::set_drain(uint32_t shard, uint64_t incarnation, const std::optional<DrainNote>& note) {
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  EtcdTransaction transaction;
  transaction.if_version(key_of_shard(shard), incarnation);
  if (note) {
    transaction.then().put(key(key_of_drain(shard)), encode_drain_note(*note));
  } else {
    transaction.then().remove(key(key_of_drain(shard)));
  }
  put_change(transaction.then());
  const auto answer = run_here(transaction, *until);
  if (!answer) return std::unexpected(answer.error());
  return answer->etcd.succeeded;
}

Result<std::optional<DrainNote>> EtcdTable::read_drain(uint32_t shard) {
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  EtcdTransaction transaction;
  transaction.then().get(key_of_shard(shard)).get(key(key_of_drain(shard)));
  const auto answer = run(transaction, *until);
  if (!answer) return std::unexpected(answer.error());
  const EtcdEntry* start = first_of(answer->etcd, 0);
  const EtcdEntry* note = first_of(answer->etcd, 1);
  return start && note ? decode_drain_note(text_of(note->value), start->version) : std::nullopt;
}

Result<std::vector<JobRecord>> EtcdTable::open_jobs() {
  const Result<TimeNs> until = deadline();
  if (!until) return std::unexpected(until.error());
  EtcdTransaction transaction;
  transaction.then().get_all(key("job/"));
  const auto answer = run(transaction, *until);
  if (!answer) return std::unexpected(answer.error());
  if (answer->etcd.ranges.size() != 1) return damaged("the answer");
  std::vector<JobRecord> jobs;
  for (const EtcdEntry& entry : answer->etcd.ranges[0]) {
    Result<JobRecord> record = record_of(entry);
    if (!record) return std::unexpected(record.error());
    jobs.push_back(std::move(*record));
  }
  return jobs;
}

Result<bool> EtcdTable::remove_cluster() {
  // A process that was stopped meanwhile knows by the next identity that the cluster was removed.
  const std::string next = fmt::format("{:016x}", random_identity());
  EtcdTransaction transaction;
  transaction.if_none(key("lease/"))
      .if_none(key("leaving/"))
      .if_none(key("spare/"))
      .if_value(key("identity"), identity_);
  for (const char* kind : {"shard/", "drain/", "name/", "job/", "spec/", "done/"})
    transaction.then().remove_all(key(kind));
  transaction.then().remove(key("shard_count")).put(key("identity"), next);
  put_change(transaction.then());
  transaction.otherwise().get(key("identity"));
  const auto answer = run(transaction, open_deadline());
  if (!answer) return std::unexpected(answer.error());
  const EtcdEntry* found = first_of(answer->etcd, 0);
  const bool earlier_attempt = !answer->etcd.succeeded && found && text_of(found->value) == next;
  if (!answer->etcd.succeeded && !earlier_attempt) {
    if (!is_own(found)) return another_table();
    return false;
  }
  identity_ = next;
  poller_.reset();  // it watches the identity before
  return true;
}

ByteBuffer EtcdTable::next_tag() {
  ByteBuffer tag;
  ByteWriter writer(tag);
  writer.put(tag_);
  writer.put(++swaps_);
  return tag;
}

ByteBuffer EtcdTable::tagged(const ByteBuffer& tag, const JobRecord& record) {
  JobRecord without_spec = record;
  without_spec.spec.clear();
  ByteBuffer bytes = tag;
  const ByteBuffer encoded = encode_job_record(without_spec);
  bytes.insert(bytes.end(), encoded.begin(), encoded.end());
  return bytes;
}

}  // namespace

Result<std::unique_ptr<MembershipTable>> open_etcd_table(const EtcdOptions& options) {
  auto table = std::make_unique<EtcdTable>(options);
  if (Status opened = table->open(); !opened) return std::unexpected(opened.error());
  return table;
}

}  // namespace millrace::protocol

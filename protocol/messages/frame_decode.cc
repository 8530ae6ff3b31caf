#include "protocol/messages/kj_compare.h"  // before the others

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/array.h>
#include <kj/exception.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/messages/frame.h"
#include "protocol/messages/log_branch.h"
#include "protocol/messages/messages.capnp.h"
#include "protocol/messages/summary_check.h"

namespace millrace::protocol {
namespace {

constexpr uint32_t kSegmentsMax = 64;
constexpr size_t kWordBytes = sizeof(capnp::word);
/// Root, body, view, list, element, text: six pointers deep, and some reserve.
constexpr int kNestingMax = 12;

/// Collects the first fault of a message; values read after it are defaults and thrown away.
class Validator {
 public:
  bool ok() const { return !error_; }
  Error error() const { return *error_; }

  void refuse(ErrorCode code, std::string message) {
    if (!error_) error_ = Error{code, std::move(message)};
  }
  void expect(bool condition, std::string_view what) {
    if (!condition) refuse(ErrorCode::kMalformed, fmt::format("message: {}", what));
  }
  /// Returns a list's or a byte string's size, 0 where it is over its limit.
  uint32_t count(uint64_t size, uint64_t size_max, std::string_view what) {
    if (size > size_max) {
      refuse(ErrorCode::kLimitExceeded, fmt::format("message: {} {}, the limit is {}", size, what, size_max));
      return 0;
    }
    return static_cast<uint32_t>(size);
  }
  double finite(double value, std::string_view what) {
    if (!std::isfinite(value)) refuse(ErrorCode::kNonFinite, fmt::format("message: {} is not finite", what));
    return value;
  }
  double not_negative(double value, std::string_view what) {
    if (finite(value, what) < 0) refuse(ErrorCode::kMalformed, fmt::format("message: {} is negative", what));
    return value;
  }
  std::string text(capnp::Text::Reader text, uint64_t bytes_max, std::string_view what) {
    if (count(text.size(), bytes_max, what) == 0) return {};
    std::string value(text.begin(), text.size());
    if (!is_plain_text(value)) refuse(ErrorCode::kMalformed, fmt::format("message: {} are not printable text", what));
    return value;
  }
  /// Reads a sentence for people: characters that cannot be printed are replaced, the rest is kept.
  std::string sentence(capnp::Text::Reader text) {
    if (count(text.size(), kSentenceBytesMax, "bytes of sentence") == 0) return {};
    return plain_text_of({text.begin(), text.size()}, kSentenceBytesMax);
  }
  ErrorCode error_code(uint16_t code) {
    const auto value = static_cast<ErrorCode>(code);
    if (code == 0 || error_code_name(value) == error_code_name(ErrorCode{0})) {
      refuse(ErrorCode::kUnsupported, fmt::format("message: error code {} is not known to this version", code));
      return ErrorCode::kInternal;
    }
    return value;
  }
  uint32_t worker(uint32_t worker) {
    expect(worker < kWorkersMax, "a worker's number is over the limit");
    return worker;
  }
  /// Returns whether the rest can be read at all. A Hello without a version in common is handed on as far as this, so
  /// that the shard can refuse it with its name.
  bool versions(uint32_t version_min, uint32_t version_max) {
    expect(version_min <= version_max, "its oldest version is newer than its newest");
    return ok() && version_max >= kProtocolVersionMin && version_min <= kProtocolVersion;
  }

 private:
  std::optional<Error> error_;
};

Membership read_membership(wire::Membership::Reader in, Validator& check) {
  Membership membership;
  membership.job = in.getJob();
  membership.epoch = in.getEpoch();
  membership.started = in.getStarted();
  membership.finished = in.getFinished();
  membership.branches = in.getBranches();
  membership.cut = in.getCut();
  membership.cut_worker = check.worker(in.getCutWorker());
  membership.left = in.getLeft();
  check.expect(in.getPath() <= 1, "its path is not known");
  membership.path = in.getPath() == 1 ? Path::kSwitch : Path::kServer;
  const auto members = in.getMembers();
  membership.members.resize(check.count(members.size(), kWorkersMax, "members"));
  for (uint32_t i = 0; i < membership.members.size(); ++i) {
    const auto member = members[i];
    const uint8_t state = member.getState();
    check.expect(
        state == static_cast<uint8_t>(MemberState::kSynced) || state == static_cast<uint8_t>(MemberState::kJoining),
        "a member's state is not known");
    membership.members[i] = {check.worker(member.getWorker()), member.getIncarnation(), member.getNonce(),
                             static_cast<MemberState>(state)};
    check.expect(i == 0 || membership.members[i - 1].worker < membership.members[i].worker,
                 "members are not in ascending order");
  }
  const auto shards = in.getShards();
  membership.shards.resize(check.count(shards.size(), kShardsMax, "shards"));
  for (uint32_t i = 0; i < membership.shards.size(); ++i) {
    membership.shards[i] = {check.text(shards[i].getAddress(), kAddressBytesMax, "bytes of address"),
                            shards[i].getIncarnation(),
                            check.text(shards[i].getDatagrams(), kAddressBytesMax, "bytes of address")};
  }
  const auto activations = in.getActivations();
  membership.activations.resize(check.count(activations.size(), kActivationsMax, "activations"));
  for (uint32_t i = 0; i < membership.activations.size(); ++i) {
    const auto each = activations[i];
    membership.activations[i] = {each.getShard(), each.getBranch(), each.getParent()};
  }
  check.expect(membership.cut <= membership.epoch, "a cut is of a later epoch than its view");
  check.expect(activations_make_sense(membership), "its activations cannot be");
  return membership;
}

SummaryEntry read_entry(wire::SummaryEntry::Reader in, Validator& check) {
  SummaryEntry entry{.worker = check.worker(in.getWorker()),
                     .incarnation = in.getIncarnation(),
                     .last_step = in.getLastStep(),
                     .counted_mask = in.getCountedMask(),
                     .entered = check.finite(in.getEntered(), "a summary's sum of entered values"),
                     .carried = check.finite(in.getCarried(), "a summary's sum of carried values"),
                     .lost = check.finite(in.getLost(), "a summary's sum of lost values"),
                     .earlier_incarnations = {},
                     .sequence = in.getSequence()};
  const auto incarnations = in.getEarlierIncarnations();
  entry.earlier_incarnations.resize(
      check.count(incarnations.size(), kEarlierIncarnationsMax, "earlier incarnations in a summary"));
  for (uint32_t i = 0; i < entry.earlier_incarnations.size(); ++i) {
    entry.earlier_incarnations[i] = {incarnations[i].getIncarnation(), incarnations[i].getLastStep()};
  }
  return entry;
}

Summary read_summary(wire::Summary::Reader in, Validator& check) {
  Summary summary;
  summary.threshold = check.not_negative(in.getThreshold(), "a threshold");
  summary.log_digest = in.getLogDigest();
  const auto workers = in.getWorkers();
  summary.workers.resize(check.count(workers.size(), kWorkersMax, "workers in a summary"));
  for (uint32_t i = 0; i < summary.workers.size(); ++i) summary.workers[i] = read_entry(workers[i], check);
  const auto epochs = in.getEpochs();
  summary.epochs.resize(check.count(epochs.size(), kSummaryEpochsMax, "epochs in a summary"));
  for (uint32_t i = 0; i < summary.epochs.size(); ++i) {
    summary.epochs[i] = {epochs[i].getEpoch(), epochs[i].getFirstStep()};
  }
  const std::string_view disorder = disorder_in(summary);
  check.expect(disorder.empty(), disorder);
  return summary;
}

Hello read_hello(wire::Hello::Reader in, Validator& check) {
  Hello hello;
  hello.version_min = in.getVersionMin();
  hello.version_max = in.getVersionMax();
  hello.software = check.text(in.getSoftware(), kSoftwareBytesMax, "bytes of software name");
  if (!check.versions(hello.version_min, hello.version_max)) return hello;
  hello.capabilities = in.getCapabilities();
  hello.nonce = in.getNonce();
  hello.layout_hash = in.getLayoutHash();
  hello.shard_count = in.getShardCount();
  check.expect(hello.shard_count >= 1 && hello.shard_count <= kShardsMax, "its count of shards is not possible");
  const auto auth = in.getAuth();
  if (check.count(auth.size(), kAuthBytesMax, "bytes of authentication") > 0)
    hello.auth.assign(auth.begin(), auth.end());
  hello.returns = in.getReturns();
  hello.has_weights = in.getHasWeights();
  const auto spec = in.getSpec();
  const ByteSpan spec_bytes(spec.begin(), spec.size());
  check.expect(in.getSpecHash() == hash64(spec_bytes),
               "the job specification does not have the hash that it came with");
  if (!check.ok()) return hello;
  Result<JobSpec> decoded = decode_job_spec(spec_bytes);
  if (decoded) {
    hello.spec = std::move(*decoded);
  } else {
    check.refuse(decoded.error().code, decoded.error().message);
  }
  return hello;
}

Welcome read_welcome(wire::Welcome::Reader in, Validator& check) {
  Welcome welcome;
  welcome.version = in.getVersion();
  if (welcome.version < kProtocolVersionMin || welcome.version > kProtocolVersion) {
    check.refuse(ErrorCode::kVersionMismatch,
                 fmt::format("the shard welcomes with protocol version {}, offered were {} to {}", welcome.version,
                             kProtocolVersionMin, kProtocolVersion));
  }
  welcome.capabilities = in.getCapabilities();
  welcome.software = check.text(in.getSoftware(), kSoftwareBytesMax, "bytes of software name");
  welcome.membership = read_membership(in.getMembership(), check);
  welcome.heartbeat_ms = in.getHeartbeatMs();
  welcome.dead_after_ms = in.getDeadAfterMs();
  welcome.message_bytes_max = in.getMessageBytesMax();
  return welcome;
}

Refuse read_refuse(wire::Refuse::Reader in, Validator& check) {
  return {.code = check.error_code(in.getCode()),
          .sentence = check.sentence(in.getSentence()),
          .retry = in.getRetry(),
          .about_contribution = in.getAboutContribution(),
          .part = in.getPart(),
          .step = in.getStep()};
}

Contribution read_contribution(wire::Contribution::Reader in, Validator& check) {
  return {.part = in.getPart(),
          .step = in.getStep(),
          .payload_hash = in.getPayloadHash(),
          .weight = check.not_negative(in.getWeight(), "a weight"),
          .entered = check.finite(in.getEntered(), "the sum of entered values"),
          .lost = check.finite(in.getLost(), "the sum of lost values"),
          .imbalance = check.finite(in.getImbalance(), "an imbalance"),
          .again = in.getAgain()};
}

ContributorId read_contributor(wire::Contributor::Reader in, Validator& check) {
  return {check.worker(in.getWorker()), in.getIncarnation(), in.getSequence()};
}

Update read_update(wire::Update::Reader in, Validator& check) {
  Update update;
  update.part = in.getPart();
  update.step = in.getStep();
  update.decided_in = in.getDecidedIn();
  update.weight_sum = check.not_negative(in.getWeightSum(), "a sum of weights");
  update.whole_sum = in.getWholeSum();
  update.stable = in.getStable();
  update.branch = in.getBranch();
  const auto contributors = in.getContributors();
  update.contributors.resize(check.count(contributors.size(), kWorkersMax, "contributors"));
  for (uint32_t i = 0; i < update.contributors.size(); ++i) {
    update.contributors[i] = read_contributor(contributors[i], check);
    check.expect(i == 0 || update.contributors[i - 1].worker < update.contributors[i].worker,
                 "contributors are not in ascending order");
  }
  update.summary = read_summary(in.getSummary(), check);
  const auto merged = in.getMerged();
  update.merged.resize(check.count(merged.size(), kMergedStepsMax, "merged steps"));
  for (uint32_t i = 0; i < update.merged.size(); ++i) {
    update.merged[i] = {read_contributor(merged[i].getContributor(), check),
                        check.not_negative(merged[i].getWeight(), "a weight"), merged[i].getIdentity()};
  }
  const bool fits = update.merged.size() != 1 && update.merged.size() <= update.step + 1;
  check.expect(update.merged.empty() || (fits && update.contributors.empty()), "merged steps that cannot be");
  return update;
}

std::vector<Ack::Entry> read_entries(capnp::List<wire::AckEntry>::Reader in, uint32_t count) {
  std::vector<Ack::Entry> entries(count);
  for (uint32_t i = 0; i < count; ++i) entries[i] = {in[i].getPart(), in[i].getN(), in[i].getAgain()};
  return entries;
}

Ack read_ack(wire::Ack::Reader in, Validator& check) {
  const auto entries = in.getEntries();
  return {read_entries(entries, check.count(entries.size(), kAckEntriesMax, "parts in an ack"))};
}

Heartbeat read_heartbeat(wire::Heartbeat::Reader in, Validator& check) {
  Heartbeat heartbeat;
  heartbeat.sequence = in.getSequence();
  heartbeat.steps_applied = in.getStepsApplied();
  heartbeat.finishing = in.getFinishing();
  check.expect(in.getSwitchState() <= static_cast<uint8_t>(Heartbeat::Switch::kAnswers),
               "its state of the switch is not known");
  heartbeat.switch_state = static_cast<Heartbeat::Switch>(in.getSwitchState());
  check.expect(in.getSwitchWait() <= static_cast<uint8_t>(Heartbeat::SwitchWait::kOtherJob),
               "its wait at the switch is not known");
  heartbeat.switch_wait = static_cast<Heartbeat::SwitchWait>(in.getSwitchWait());
  heartbeat.switch_steps = in.getSwitchSteps();
  const auto waited_for = in.getWaitedFor();
  heartbeat.waited_for.resize(check.count(waited_for.size(), kWorkersMax, "workers waited for"));
  for (uint32_t i = 0; i < heartbeat.waited_for.size(); ++i) heartbeat.waited_for[i] = check.worker(waited_for[i]);
  const auto decided = in.getDecided();
  heartbeat.decided = read_entries(decided, check.count(decided.size(), kHeartbeatPartsMax, "parts in a heartbeat"));
  const auto digests = in.getDigests();
  heartbeat.digests.resize(check.count(digests.size(), kHeartbeatPartsMax, "digests in a heartbeat"));
  for (uint32_t i = 0; i < heartbeat.digests.size(); ++i) {
    heartbeat.digests[i] = {digests[i].getPart(), digests[i].getN(), digests[i].getDigest()};
  }
  return heartbeat;
}

ShardHello read_shard_hello(wire::ShardHello::Reader in, Validator& check) {
  ShardHello hello;
  hello.version_min = in.getVersionMin();
  hello.version_max = in.getVersionMax();
  hello.software = check.text(in.getSoftware(), kSoftwareBytesMax, "bytes of software name");
  if (check.versions(hello.version_min, hello.version_max)) hello.shard_map_hash = in.getShardMapHash();
  return hello;
}

Goodbye read_goodbye(wire::Goodbye::Reader in, Validator& check) {
  const uint8_t reason = in.getReason();
  check.expect(reason >= static_cast<uint8_t>(Goodbye::Reason::kFinished) &&
                   reason <= static_cast<uint8_t>(Goodbye::Reason::kFailed),
               "a reason of leaving is not known");
  Goodbye goodbye{static_cast<Goodbye::Reason>(reason), check.sentence(in.getSentence())};
  const auto reach = in.getReach();
  goodbye.reach.resize(check.count(reach.size(), kShardsMax, "shards in a Goodbye"));
  for (uint32_t shard = 0; shard < goodbye.reach.size(); ++shard) {
    goodbye.reach[shard] = {reach[shard].getSteps(), reach[shard].getDecidedIn()};
  }
  return goodbye;
}

State read_state(wire::State::Reader in, Validator& check) {
  State state;
  state.synced = in.getSynced();
  state.stranded = in.getStranded();
  const auto parts = in.getParts();
  state.parts.resize(check.count(parts.size(), kStatePartsMax, "parts in a state"));
  for (uint32_t i = 0; i < state.parts.size(); ++i) {
    const auto part = parts[i];
    state.parts[i] = {.part = part.getPart(),
                      .n = part.getN(),
                      .decided_in = part.getDecidedIn(),
                      .branch = part.getBranch(),
                      .retained_from = part.getRetainedFrom()};
    check.expect(i == 0 || state.parts[i - 1].part < state.parts[i].part, "a state's parts are not in ascending order");
    check.expect(state.parts[i].retained_from <= state.parts[i].n, "a state keeps updates that it does not have");
  }
  return state;
}

Settle read_settle(wire::Settle::Reader in, Validator& check) {
  const uint8_t weights = in.getWeights();
  check.expect(
      weights >= static_cast<uint8_t>(Settle::Weights::kOwn) && weights <= static_cast<uint8_t>(Settle::Weights::kNone),
      "its choice of weights is not known");
  Settle settle{.part = in.getPart(),
                .decided = in.getDecided(),
                .branch = in.getBranch(),
                .on_log = in.getOnLog(),
                .weights = static_cast<Settle::Weights>(weights),
                .counted = std::nullopt};
  if (in.hasCounted()) settle.counted = read_entry(in.getCounted(), check);
  return settle;
}

SnapshotRequest read_snapshot_request(wire::SnapshotRequest::Reader in, Validator& check) {
  SnapshotRequest request;
  request.for_worker = check.worker(in.getForWorker());
  request.for_incarnation = in.getForIncarnation();
  const auto parts = in.getParts();
  request.parts.resize(check.count(parts.size(), kStatePartsMax, "parts of a snapshot"));
  for (uint32_t i = 0; i < request.parts.size(); ++i) {
    request.parts[i] = parts[i];
    check.expect(i == 0 || request.parts[i - 1] < request.parts[i], "a snapshot's parts are not in ascending order");
  }
  return request;
}

Snapshot read_snapshot(wire::Snapshot::Reader in, Validator& check) {
  return {.part = in.getPart(),
          .for_worker = check.worker(in.getForWorker()),
          .for_incarnation = in.getForIncarnation(),
          .n = in.getN(),
          .decided_in = in.getDecidedIn(),
          .offset = in.getOffset(),
          .payload_hash = in.getPayloadHash(),
          .summary = read_summary(in.getSummary(), check)};
}

MembershipChange read_membership_change(wire::MembershipChange::Reader in, Validator& check) {
  MembershipChange change{read_membership(in.getMembership(), check)};
  const auto decided = in.getDecided();
  change.decided.resize(check.count(decided.size(), kPartsMax, "parts in a change of view"));
  for (uint32_t i = 0; i < change.decided.size(); ++i) change.decided[i] = decided[i];
  return change;
}

Pull read_pull(wire::Pull::Reader in, Validator& check) {
  Pull pull{.id = in.getId(),
            .part = in.getPart(),
            .indices = check.count(in.getIndices(), kPullValuesMax, "indices to pull"),
            .at_least = in.getAtLeast(),
            .offset = in.getOffset(),
            .count = check.count(in.getCount(), kPullValuesMax, "values to pull"),
            .run = in.getRun()};
  check.count(uint64_t{pull.indices} * pull.run, kPullValuesMax, "values of runs to pull");
  check.expect(pull.indices != 0 || pull.run == 0, "it pulls runs without indices");
  check.expect(pull.indices == 0 || (pull.offset == 0 && pull.count == 0), "it pulls indices and a range");
  check.expect(pull.offset <= kDimensionMax, "a range behind every dimension");
  return pull;
}

Pulled read_pulled(wire::Pulled::Reader in, Validator& check) {
  Pulled pulled{.id = in.getId(),
                .part = in.getPart(),
                .values = check.count(in.getValues(), kPullValuesMax, "values pulled"),
                .n = in.getN(),
                .payload_hash = in.getPayloadHash(),
                .code = {},
                .sentence = check.sentence(in.getSentence())};
  if (in.getCode() != 0) pulled.code = check.error_code(in.getCode());
  check.expect(!pulled.code || pulled.values == 0, "it has values and an error");
  return pulled;
}

Place read_place(wire::Place::Reader in, Validator& check) {
  check.expect(in.getOffset() < kDimensionMax, "a run of weights behind every dimension");
  return {in.getPart(), in.getOffset(), in.getPayloadHash()};
}

Body read_body(wire::Envelope::Reader in, Validator& check) {
  switch (in.which()) {
    case wire::Envelope::HELLO: return read_hello(in.getHello(), check);
    case wire::Envelope::WELCOME: return read_welcome(in.getWelcome(), check);
    case wire::Envelope::REFUSE: return read_refuse(in.getRefuse(), check);
    case wire::Envelope::MEMBERSHIP_CHANGE: return read_membership_change(in.getMembershipChange(), check);
    case wire::Envelope::CONTRIBUTION: return read_contribution(in.getContribution(), check);
    case wire::Envelope::DUPLICATE: return Duplicate{in.getDuplicate().getPart(), in.getDuplicate().getStep()};
    case wire::Envelope::UPDATE: return read_update(in.getUpdate(), check);
    case wire::Envelope::STEP_DECIDED: {
      const auto settled = in.getStepDecided();
      return StepDecided{settled.getPart(), settled.getStep(), settled.getCounted()};
    }
    case wire::Envelope::ACK: return read_ack(in.getAck(), check);
    case wire::Envelope::HEARTBEAT: return read_heartbeat(in.getHeartbeat(), check);
    case wire::Envelope::SHARD_HELLO: return read_shard_hello(in.getShardHello(), check);
    case wire::Envelope::THRESHOLD_HISTOGRAM: {
      const auto histogram = in.getThresholdHistogram();
      return ThresholdHistogram{histogram.getBucket(), histogram.getStep(), histogram.getPayloadHash()};
    }
    case wire::Envelope::GOODBYE: return read_goodbye(in.getGoodbye(), check);
    case wire::Envelope::ABORT: {
      const auto abort = in.getAbort();
      return Abort{check.error_code(abort.getCode()), check.sentence(abort.getSentence())};
    }
    case wire::Envelope::COLLECT: return Collect{};
    case wire::Envelope::STATE: return read_state(in.getState(), check);
    case wire::Envelope::FETCH: return Fetch{in.getFetch().getPart(), in.getFetch().getFirstStep()};
    case wire::Envelope::FETCHED: {
      const auto fetched = in.getFetched();
      return Fetched{fetched.getPart(), fetched.getN(), fetched.getDecidedIn(),
                     read_summary(fetched.getSummary(), check)};
    }
    case wire::Envelope::SETTLE: return read_settle(in.getSettle(), check);
    case wire::Envelope::SNAPSHOT_REQUEST: return read_snapshot_request(in.getSnapshotRequest(), check);
    case wire::Envelope::SNAPSHOT: return read_snapshot(in.getSnapshot(), check);
    case wire::Envelope::SYNCED: return Synced{};
    case wire::Envelope::PULL: return read_pull(in.getPull(), check);
    case wire::Envelope::PULLED: return read_pulled(in.getPulled(), check);
    case wire::Envelope::PLACE: return read_place(in.getPlace(), check);
    case wire::Envelope::LATER: break;
  }
  check.refuse(ErrorCode::kUnsupported,
               fmt::format("message: kind {} is not known to this version", static_cast<int>(in.which())));
  return Goodbye{};
}

bool carries_payload(const Body& body) {
  if (const auto* pull = std::get_if<Pull>(&body)) return pull->indices != 0;
  if (const auto* pulled = std::get_if<Pulled>(&body)) return pulled->values != 0;
  if (const auto* snapshot = std::get_if<Snapshot>(&body)) return snapshot->payload_hash != 0;
  return std::holds_alternative<Contribution>(body) || std::holds_alternative<Update>(body) ||
         std::holds_alternative<ThresholdHistogram>(body) || std::holds_alternative<Place>(body);
}

/// Checks the payload's size for kinds that announce the number of their payload's values, or have a run of them.
bool payload_fits(const Body& body, uint64_t bytes) {
  if (const auto* pull = std::get_if<Pull>(&body)) return bytes == uint64_t{pull->indices} * sizeof(uint32_t);
  if (const auto* pulled = std::get_if<Pulled>(&body)) return bytes == uint64_t{pulled->values} * sizeof(float);
  if (std::holds_alternative<Place>(body)) return bytes % sizeof(float) == 0 && bytes <= kSnapshotRunBytes;
  return true;
}

Message read_message(wire::Envelope::Reader in, SharedBytes payload, Validator& check) {
  Message message;
  message.header = {.job = in.getJob(),
                    .epoch = in.getEpoch(),
                    .worker = check.worker(in.getWorker()),
                    .incarnation = in.getIncarnation(),
                    .shard = in.getShard(),
                    .shard_incarnation = in.getShardIncarnation()};
  check.expect(message.header.shard < kShardsMax, "a shard's number is over the limit");
  check.expect(in.getPayloadBytes() == payload.bytes.size(), "its payload frame has another size than announced");
  message.body = read_body(in, check);
  if (check.ok()) {
    check.expect(carries_payload(message.body) == !payload.bytes.empty(),
                 payload.bytes.empty() ? "its payload is missing" : "it carries a payload that its kind does not have");
  }
  if (check.ok())
    check.expect(payload_fits(message.body, payload.bytes.size()), "its payload has another size than it states");
  message.payload = std::move(payload);
  return message;
}

/// Checks Cap'n Proto's framing before its own reader sees it: word-sized, few segments, and exactly the segments'
/// announced length.
Status check_framing(ByteSpan envelope) {
  const auto malformed = [] {
    return fail(ErrorCode::kMalformed, "message: its envelope is not a Cap'n Proto message");
  };
  if (envelope.size() < 2 * kWordBytes || envelope.size() % kWordBytes != 0) return malformed();
  ByteReader reader(envelope);
  const uint64_t segments = uint64_t{reader.get<uint32_t>().value_or(0)} + 1;
  if (segments > kSegmentsMax) return malformed();
  uint64_t words = segments / 2 + 1;
  for (uint64_t i = 0; i < segments; ++i) {
    const std::optional<uint32_t> segment_words = reader.get<uint32_t>();
    if (!segment_words) return malformed();
    words += *segment_words;
  }
  return words * kWordBytes == envelope.size() ? Status() : Status(malformed());
}

}  // namespace

Result<Message> decode_message(ByteSpan envelope, SharedBytes payload, const FrameLimits& limits) {
  if (envelope.size() > limits.envelope_bytes_max) {
    return fail(ErrorCode::kLimitExceeded, fmt::format("message: an envelope of {} bytes, the limit is {}",
                                                       envelope.size(), limits.envelope_bytes_max));
  }
  if (payload.bytes.size() > limits.payload_bytes_max) {
    return fail(ErrorCode::kLimitExceeded, fmt::format("message: a payload of {} bytes, the limit is {}",
                                                       payload.bytes.size(), limits.payload_bytes_max));
  }
  if (Status framed = check_framing(envelope); !framed) return std::unexpected(framed.error());
  // The reader wants words; a received frame lies anywhere.
  kj::Array<capnp::word> aligned = kj::heapArray<capnp::word>(envelope.size() / kWordBytes);
  std::memcpy(aligned.asBytes().begin(), envelope.data(), envelope.size());

  // Nothing is worth reading twice: pointers that share their target (an amplification) run into this limit.
  const capnp::ReaderOptions options{.traversalLimitInWords = 2 * aligned.size(), .nestingLimit = kNestingMax};
  Validator check;
  // Cap'n Proto reports hostile pointers by exception; none passes this function.
  try {
    capnp::FlatArrayMessageReader reader(aligned, options);
    Message message = read_message(reader.getRoot<wire::Envelope>(), std::move(payload), check);
    if (!check.ok()) return std::unexpected(check.error());
    return message;
  } catch (const kj::Exception& exception) {
    const kj::StringPtr what = exception.getDescription();
    return fail(ErrorCode::kMalformed,
                fmt::format("message: {}", plain_text_of({what.begin(), what.size()}, kSentenceBytesMax)));
  }
}

}  // namespace millrace::protocol

#include "protocol/messages/kj_compare.h"  // before the others

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/io.h>

#include <array>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/messages/frame.h"
#include "protocol/messages/messages.capnp.h"

namespace millrace::protocol {
namespace {

/// Most envelopes fit in this without an allocation of the builder's.
constexpr size_t kFirstSegmentWords = 256;

capnp::Data::Reader data_of(ByteSpan bytes) { return {bytes.data(), bytes.size()}; }

capnp::Text::Reader frame_text_of(const std::string& text) { return {text.c_str(), text.size()}; }

std::string sentence_of(const std::string& sentence) { return plain_text_of(sentence, kSentenceBytesMax); }

template <typename List>
unsigned list_size(const List& list, size_t count_max) {
  MILLRACE_CHECK(list.size() <= count_max, list.size(), count_max);
  return static_cast<unsigned>(list.size());
}

void write(const Membership& membership, wire::Membership::Builder out) {
  out.setJob(membership.job);
  out.setEpoch(membership.epoch);
  out.setStarted(membership.started);
  out.setFinished(membership.finished);
  out.setBranches(membership.branches);
  out.setCut(membership.cut);
  out.setCutWorker(membership.cut_worker);
  out.setLeft(membership.left);
  out.setPath(membership.path == Path::kSwitch ? 1 : 0);
  auto members = out.initMembers(list_size(membership.members, kWorkersMax));
  for (unsigned i = 0; i < members.size(); ++i) {
    members[i].setWorker(membership.members[i].worker);
    members[i].setIncarnation(membership.members[i].incarnation);
    members[i].setNonce(membership.members[i].nonce);
    members[i].setState(static_cast<uint8_t>(membership.members[i].state));
  }
  auto shards = out.initShards(list_size(membership.shards, kShardsMax));
  for (unsigned i = 0; i < shards.size(); ++i) {
    shards[i].setAddress(frame_text_of(membership.shards[i].address));
    shards[i].setIncarnation(membership.shards[i].incarnation);
    shards[i].setDatagrams(frame_text_of(membership.shards[i].datagrams));
  }
  auto activations = out.initActivations(list_size(membership.activations, kActivationsMax));
  for (unsigned i = 0; i < activations.size(); ++i) {
    activations[i].setShard(membership.activations[i].shard);
    activations[i].setBranch(membership.activations[i].branch);
    activations[i].setParent(membership.activations[i].parent);
  }
}

void write(const std::vector<Ack::Entry>& entries, capnp::List<wire::AckEntry>::Builder out) {
  for (unsigned i = 0; i < out.size(); ++i) {
    out[i].setPart(entries[i].part);
    out[i].setN(entries[i].n);
    out[i].setAgain(entries[i].again);
  }
}

void write(const ContributorId& who, wire::Contributor::Builder out) {
  out.setWorker(who.worker);
  out.setIncarnation(who.incarnation);
  out.setSequence(who.sequence);
}

void write(const SummaryEntry& entry, wire::SummaryEntry::Builder out) {
  out.setWorker(entry.worker);
  out.setIncarnation(entry.incarnation);
  out.setLastStep(entry.last_step);
  out.setCountedMask(entry.counted_mask);
  out.setEntered(entry.entered);
  out.setCarried(entry.carried);
  out.setLost(entry.lost);
  out.setSequence(entry.sequence);
  if (entry.earlier_incarnations.empty()) return;
  auto incarnations = out.initEarlierIncarnations(list_size(entry.earlier_incarnations, kEarlierIncarnationsMax));
  for (unsigned i = 0; i < incarnations.size(); ++i) {
    incarnations[i].setIncarnation(entry.earlier_incarnations[i].first);
    incarnations[i].setLastStep(entry.earlier_incarnations[i].second);
  }
}

void write(const Summary& summary, wire::Summary::Builder out) {
  out.setThreshold(summary.threshold);
  out.setLogDigest(summary.log_digest);
  auto workers = out.initWorkers(list_size(summary.workers, kWorkersMax));
  for (unsigned i = 0; i < workers.size(); ++i) {
    write(summary.workers[i], workers[i]);
  }
  auto epochs = out.initEpochs(list_size(summary.epochs, kSummaryEpochsMax));
  for (unsigned i = 0; i < epochs.size(); ++i) {
    epochs[i].setEpoch(summary.epochs[i].first);
    epochs[i].setFirstStep(summary.epochs[i].second);
  }
}

/// Writes the body of a message; one overload a kind, so that a kind without one does not compile.
struct BodyWriter {
  wire::Envelope::Builder envelope;

  void operator()(const Hello& body) {
    auto out = envelope.initHello();
    out.setVersionMin(body.version_min);
    out.setVersionMax(body.version_max);
    out.setCapabilities(body.capabilities);
    out.setNonce(body.nonce);
    out.setLayoutHash(body.layout_hash);
    out.setShardCount(body.shard_count);
    out.setSoftware(frame_text_of(plain_text_of(body.software, kSoftwareBytesMax)));
    const ByteBuffer spec = encode_job_spec(body.spec);
    out.setSpec(data_of(spec));
    out.setSpecHash(hash64(ByteSpan(spec)));
    out.setAuth(data_of(body.auth));
    out.setReturns(body.returns);
    out.setHasWeights(body.has_weights);
  }
  void operator()(const Welcome& body) {
    auto out = envelope.initWelcome();
    out.setVersion(body.version);
    out.setCapabilities(body.capabilities);
    out.setHeartbeatMs(body.heartbeat_ms);
    out.setDeadAfterMs(body.dead_after_ms);
    out.setMessageBytesMax(body.message_bytes_max);
    out.setSoftware(frame_text_of(plain_text_of(body.software, kSoftwareBytesMax)));
    write(body.membership, out.initMembership());
  }
  void operator()(const Refuse& body) {
    auto out = envelope.initRefuse();
    out.setCode(static_cast<uint16_t>(body.code));
    out.setRetry(body.retry);
    out.setAboutContribution(body.about_contribution);
    out.setPart(body.part);
    out.setStep(body.step);
    out.setSentence(frame_text_of(sentence_of(body.sentence)));
  }
  void operator()(const MembershipChange& body) {
    auto out = envelope.initMembershipChange();
    write(body.membership, out.initMembership());
    auto decided = out.initDecided(static_cast<uint32_t>(body.decided.size()));
    for (uint32_t at = 0; at < body.decided.size(); ++at) decided.set(at, body.decided[at]);
  }
  void operator()(const Contribution& body) {
    auto out = envelope.initContribution();
    out.setPart(body.part);
    out.setStep(body.step);
    out.setPayloadHash(body.payload_hash);
    out.setWeight(body.weight);
    out.setEntered(body.entered);
    out.setLost(body.lost);
    out.setImbalance(body.imbalance);
    out.setAgain(body.again);
  }
  void operator()(const Duplicate& body) {
    auto out = envelope.initDuplicate();
    out.setPart(body.part);
    out.setStep(body.step);
  }
  void operator()(const Update& body) {
    auto out = envelope.initUpdate();
    out.setPart(body.part);
    out.setStep(body.step);
    out.setDecidedIn(body.decided_in);
    out.setWeightSum(body.weight_sum);
    out.setWholeSum(body.whole_sum);
    out.setStable(body.stable);
    out.setBranch(body.branch);
    auto contributors = out.initContributors(list_size(body.contributors, kWorkersMax));
    for (unsigned i = 0; i < contributors.size(); ++i) write(body.contributors[i], contributors[i]);
    write(body.summary, out.initSummary());
    if (body.merged.empty()) return;
    auto merged = out.initMerged(list_size(body.merged, kMergedStepsMax));
    for (unsigned i = 0; i < merged.size(); ++i) {
      write(body.merged[i].contributor, merged[i].initContributor());
      merged[i].setWeight(body.merged[i].weight);
      merged[i].setIdentity(body.merged[i].identity);
    }
  }
  void operator()(const StepDecided& body) {
    auto out = envelope.initStepDecided();
    out.setPart(body.part);
    out.setStep(body.step);
    out.setCounted(body.counted);
  }
  void operator()(const Ack& body) {
    write(body.entries, envelope.initAck().initEntries(list_size(body.entries, kAckEntriesMax)));
  }
  void operator()(const Heartbeat& body) {
    auto out = envelope.initHeartbeat();
    out.setSequence(body.sequence);
    out.setStepsApplied(body.steps_applied);
    out.setFinishing(body.finishing);
    out.setSwitchState(static_cast<uint8_t>(body.switch_state));
    out.setSwitchWait(static_cast<uint8_t>(body.switch_wait));
    out.setSwitchSteps(body.switch_steps);
    auto waited_for = out.initWaitedFor(list_size(body.waited_for, kWorkersMax));
    for (unsigned i = 0; i < waited_for.size(); ++i) waited_for.set(i, body.waited_for[i]);
    write(body.decided, out.initDecided(list_size(body.decided, kHeartbeatPartsMax)));
    auto digests = out.initDigests(list_size(body.digests, kHeartbeatPartsMax));
    for (unsigned i = 0; i < digests.size(); ++i) {
      digests[i].setPart(body.digests[i].part);
      digests[i].setN(body.digests[i].n);
      digests[i].setDigest(body.digests[i].digest);
    }
  }
  void operator()(const ShardHello& body) {
    auto out = envelope.initShardHello();
    out.setVersionMin(body.version_min);
    out.setVersionMax(body.version_max);
    out.setShardMapHash(body.shard_map_hash);
    out.setSoftware(frame_text_of(plain_text_of(body.software, kSoftwareBytesMax)));
  }
  void operator()(const ThresholdHistogram& body) {
    auto out = envelope.initThresholdHistogram();
    out.setBucket(body.bucket);
    out.setStep(body.step);
    out.setPayloadHash(body.payload_hash);
  }
  void operator()(const Goodbye& body) {
    auto out = envelope.initGoodbye();
    out.setReason(static_cast<uint8_t>(body.reason));
    out.setSentence(frame_text_of(sentence_of(body.sentence)));
    auto reach = out.initReach(list_size(body.reach, kShardsMax));
    for (uint32_t shard = 0; shard < reach.size(); ++shard) {
      reach[shard].setSteps(body.reach[shard].steps);
      reach[shard].setDecidedIn(body.reach[shard].decided_in);
    }
  }
  void operator()(const Abort& body) {
    auto out = envelope.initAbort();
    out.setCode(static_cast<uint16_t>(body.code));
    out.setSentence(frame_text_of(sentence_of(body.sentence)));
  }
  void operator()(const Collect&) { envelope.setCollect(); }
  void operator()(const State& body) {
    auto out = envelope.initState();
    out.setSynced(body.synced);
    out.setStranded(body.stranded);
    auto parts = out.initParts(list_size(body.parts, kStatePartsMax));
    for (unsigned i = 0; i < parts.size(); ++i) {
      parts[i].setPart(body.parts[i].part);
      parts[i].setN(body.parts[i].n);
      parts[i].setDecidedIn(body.parts[i].decided_in);
      parts[i].setBranch(body.parts[i].branch);
      parts[i].setRetainedFrom(body.parts[i].retained_from);
    }
  }
  void operator()(const Fetch& body) {
    auto out = envelope.initFetch();
    out.setPart(body.part);
    out.setFirstStep(body.first_step);
  }
  void operator()(const Fetched& body) {
    auto out = envelope.initFetched();
    out.setPart(body.part);
    out.setN(body.n);
    out.setDecidedIn(body.decided_in);
    write(body.summary, out.initSummary());
  }
  void operator()(const Settle& body) {
    auto out = envelope.initSettle();
    out.setPart(body.part);
    out.setDecided(body.decided);
    out.setBranch(body.branch);
    out.setOnLog(body.on_log);
    out.setWeights(static_cast<uint8_t>(body.weights));
    if (body.counted) write(*body.counted, out.initCounted());
  }
  void operator()(const SnapshotRequest& body) {
    auto out = envelope.initSnapshotRequest();
    out.setForWorker(body.for_worker);
    out.setForIncarnation(body.for_incarnation);
    auto parts = out.initParts(list_size(body.parts, kStatePartsMax));
    for (unsigned i = 0; i < parts.size(); ++i) parts.set(i, body.parts[i]);
  }
  void operator()(const Snapshot& body) {
    auto out = envelope.initSnapshot();
    out.setPart(body.part);
    out.setForWorker(body.for_worker);
    out.setForIncarnation(body.for_incarnation);
    out.setN(body.n);
    out.setDecidedIn(body.decided_in);
    out.setOffset(body.offset);
    out.setPayloadHash(body.payload_hash);
    write(body.summary, out.initSummary());
  }
  void operator()(const Synced&) { envelope.setSynced(); }
  void operator()(const Pull& body) {
    auto out = envelope.initPull();
    out.setId(body.id);
    out.setPart(body.part);
    out.setIndices(body.indices);
    out.setAtLeast(body.at_least);
    out.setOffset(body.offset);
    out.setCount(body.count);
    out.setRun(body.run);
  }
  void operator()(const Pulled& body) {
    auto out = envelope.initPulled();
    out.setId(body.id);
    out.setPart(body.part);
    out.setValues(body.values);
    out.setN(body.n);
    out.setPayloadHash(body.payload_hash);
    out.setCode(body.code ? static_cast<uint16_t>(*body.code) : uint16_t{0});
    out.setSentence(frame_text_of(sentence_of(body.sentence)));
  }
  void operator()(const Place& body) {
    auto out = envelope.initPlace();
    out.setPart(body.part);
    out.setOffset(body.offset);
    out.setPayloadHash(body.payload_hash);
  }
};

}  // namespace

ByteBuffer encode_envelope(const Message& message) {
  std::array<capnp::word, kFirstSegmentWords> first_segment;
  std::memset(first_segment.data(), 0, sizeof(first_segment));  // the builder relies on zeros
  capnp::MallocMessageBuilder builder(kj::arrayPtr(first_segment.data(), first_segment.size()));
  auto envelope = builder.initRoot<wire::Envelope>();
  envelope.setJob(message.header.job);
  envelope.setEpoch(message.header.epoch);
  envelope.setWorker(message.header.worker);
  envelope.setIncarnation(message.header.incarnation);
  envelope.setShard(message.header.shard);
  envelope.setShardIncarnation(message.header.shard_incarnation);
  envelope.setPayloadBytes(message.payload.bytes.size());
  std::visit(BodyWriter{envelope}, message.body);

  ByteBuffer bytes(capnp::computeSerializedSizeInWords(builder) * sizeof(capnp::word));
  kj::ArrayOutputStream stream(kj::arrayPtr(bytes.data(), bytes.size()));
  capnp::writeMessage(stream, builder);
  return bytes;
}

}  // namespace millrace::protocol

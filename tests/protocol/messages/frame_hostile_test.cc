#include "protocol/messages/kj_compare.h"  // before the others

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>
#include <kj/io.h>

#include <cstring>
#include <functional>
#include <limits>

#include "kernels/base/hash.h"
#include "protocol/base/limits.h"
#include "protocol/messages/frame.h"
#include "protocol/messages/messages.capnp.h"
#include "tests/protocol/example_messages.h"

/// Envelopes that encode_envelope() never writes, made with Cap'n Proto itself: well-formed for it, refused by us.
namespace millrace::protocol {
namespace {

constexpr double kFrameHostileNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ByteBuffer frame_hostile_bytes_of(capnp::MessageBuilder& builder) {
  ByteBuffer bytes(capnp::computeSerializedSizeInWords(builder) * sizeof(capnp::word));
  kj::ArrayOutputStream stream(kj::arrayPtr(bytes.data(), bytes.size()));
  capnp::writeMessage(stream, builder);
  return bytes;
}

using Build = std::function<void(wire::Envelope::Builder)>;

/// The error code of an envelope built by hand; kInternal (which no decoder gives) where it is accepted.
ErrorCode frame_hostile_refusal(const Build& build, const SharedBytes& payload = {}) {
  capnp::MallocMessageBuilder builder;
  auto envelope = builder.initRoot<wire::Envelope>();
  envelope.setPayloadBytes(payload.bytes.size());
  build(envelope);
  const auto decoded = decode_message(frame_hostile_bytes_of(builder), payload, {});
  return decoded ? ErrorCode::kInternal : decoded.error().code;
}

TEST(HostileFrame, KindsOfLaterVersionsAreUnsupported) {
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initLater(); }), ErrorCode::kUnsupported);
}

TEST(HostileFrame, EnumsOutOfRangeAreRefused) {
  for (const int code : {0, 19, 65535}) {
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initRefuse().setCode(static_cast<uint16_t>(code)); }),
              ErrorCode::kUnsupported)
        << code;
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initAbort().setCode(static_cast<uint16_t>(code)); }),
              ErrorCode::kUnsupported)
        << code;
  }
  for (const int reason : {0, 4, 255}) {
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initGoodbye().setReason(static_cast<uint8_t>(reason)); }),
              ErrorCode::kMalformed);
  }
  for (const int state : {0, 3, 255}) {
    EXPECT_EQ(frame_hostile_refusal([&](auto e) {
                e.initMembershipChange().initMembership().initMembers(1)[0].setState(static_cast<uint8_t>(state));
              }),
              ErrorCode::kMalformed);
  }
}

TEST(HostileFrame, FloatsThatAreNotFiniteAreRefused) {
  for (const double bad : {kFrameHostileNan, kInfinity, -kInfinity}) {
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initContribution().setWeight(bad); }, example_payload()),
              ErrorCode::kNonFinite);
    const auto contribution = [&](auto set) {
      return frame_hostile_refusal(
          [&](auto e) {
            auto c = e.initContribution();
            c.setWeight(1);
            set(c);
          },
          example_payload());
    };
    EXPECT_EQ(contribution([&](auto c) { c.setEntered(bad); }), ErrorCode::kNonFinite);
    EXPECT_EQ(contribution([&](auto c) { c.setLost(bad); }), ErrorCode::kNonFinite);
    EXPECT_EQ(contribution([&](auto c) { c.setImbalance(bad); }), ErrorCode::kNonFinite);
    EXPECT_EQ(contribution([&](auto) {}), ErrorCode::kInternal);
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initUpdate().setWeightSum(bad); }, example_payload()),
              ErrorCode::kNonFinite);
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initUpdate().initSummary().setThreshold(bad); }, example_payload()),
              ErrorCode::kNonFinite);
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initUpdate().initSummary().initWorkers(1)[0].setEntered(bad); },
                                    example_payload()),
              ErrorCode::kNonFinite);
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initUpdate().initSummary().initWorkers(1)[0].setCarried(bad); },
                                    example_payload()),
              ErrorCode::kNonFinite);
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initUpdate().initSummary().initWorkers(1)[0].setLost(bad); },
                                    example_payload()),
              ErrorCode::kNonFinite);
  }
}

TEST(HostileFrame, MergedStepsThatCannotBeAreRefused) {
  const auto merged = [](uint64_t step, unsigned steps, auto change) {
    return frame_hostile_refusal(
        [&](auto e) {
          auto update = e.initUpdate();
          update.setStep(step);
          auto list = update.initMerged(steps);
          for (unsigned i = 0; i < steps; ++i) list[i].initContributor();
          change(update);
        },
        example_payload());
  };
  const auto nothing = [](auto) {};
  EXPECT_EQ(merged(1, 2, nothing), ErrorCode::kInternal) << "that can be";
  EXPECT_EQ(merged(1, 1, nothing), ErrorCode::kMalformed) << "one step has no list";
  EXPECT_EQ(merged(1, 3, nothing), ErrorCode::kMalformed) << "more steps than there were";
  EXPECT_EQ(merged(1, 2, [](auto update) { update.initContributors(1); }), ErrorCode::kMalformed);
  EXPECT_EQ(merged(1, 2, [](auto update) { update.getMerged()[1].setWeight(-1); }), ErrorCode::kMalformed);
  EXPECT_EQ(merged(1, 2, [](auto update) { update.getMerged()[1].setWeight(kFrameHostileNan); }),
            ErrorCode::kNonFinite);
  EXPECT_EQ(merged(1, 2, [](auto update) { update.getMerged()[0].getContributor().setWorker(kWorkersMax); }),
            ErrorCode::kMalformed);
}

TEST(HostileFrame, WeightsAndThresholdsBelowZeroAreRefused) {
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initContribution().setWeight(0); }, example_payload()),
            ErrorCode::kInternal);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initContribution().setWeight(-1); }, example_payload()),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initUpdate().setWeightSum(-1); }, example_payload()),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initUpdate().initSummary().setThreshold(-1); }, example_payload()),
            ErrorCode::kMalformed);
}

TEST(HostileFrame, ListsAndTextsOverTheirLimitsAreRefused) {
  EXPECT_EQ(
      frame_hostile_refusal([](auto e) { e.initMembershipChange().initMembership().initMembers(kWorkersMax + 1); }),
      ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initMembershipChange().initMembership().initShards(kShardsMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal(
                [](auto e) { e.initMembershipChange().initMembership().initActivations(kActivationsMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initMembershipChange().initDecided(kPartsMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initState().initParts(kStatePartsMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initSnapshotRequest().initParts(kStatePartsMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) {
              e.initFetched().initSummary().initWorkers(1)[0].initEarlierIncarnations(kEarlierIncarnationsMax + 1);
            }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initUpdate().initContributors(kWorkersMax + 1); }, example_payload()),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initUpdate().initSummary().initWorkers(kWorkersMax + 1); },
                                  example_payload()),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initUpdate().initSummary().initEpochs(kSummaryEpochsMax + 1); },
                                  example_payload()),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initUpdate().initMerged(kMergedStepsMax + 1); }, example_payload()),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initAck().initEntries(kAckEntriesMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initHeartbeat().initWaitedFor(kWorkersMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initHeartbeat().initDigests(kHeartbeatPartsMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(
      frame_hostile_refusal([](auto e) { e.initAbort().setCode(1), e.getAbort().initSentence(kSentenceBytesMax + 1); }),
      ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) {
              e.initMembershipChange().initMembership().initShards(1)[0].initAddress(kAddressBytesMax + 1);
            }),
            ErrorCode::kLimitExceeded);
}

TEST(HostileFrame, NumbersOfWorkersAndShardsOverTheirLimitsAreRefused) {
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.setWorker(kWorkersMax), e.initDuplicate(); }), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.setShard(kShardsMax), e.initDuplicate(); }), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initUpdate().initContributors(1)[0].setWorker(kWorkersMax); },
                                  example_payload()),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initHeartbeat().initWaitedFor(1).set(0, kWorkersMax); }),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initHeartbeat().setSwitchState(3); }), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initHeartbeat().setSwitchWait(6); }), ErrorCode::kMalformed);
}

TEST(HostileFrame, ListsOutOfOrderAreRefused) {
  const auto twice_zero = [](auto list) { return list.size(); };
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { twice_zero(e.initUpdate().initContributors(2)); }, example_payload()),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { twice_zero(e.initUpdate().initSummary().initWorkers(2)); },
                                  example_payload()),
            ErrorCode::kMalformed);
  EXPECT_EQ(
      frame_hostile_refusal([&](auto e) { twice_zero(e.initUpdate().initSummary().initEpochs(2)); }, example_payload()),
      ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) {
              auto members = e.initMembershipChange().initMembership().initMembers(2);
              members[0].setState(1), members[1].setState(1);
            }),
            ErrorCode::kMalformed);
}

TEST(HostileFrame, StatesAndSettlementsThatCannotBeAreRefused) {
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initState().initParts(1)[0].setN(3); }), ErrorCode::kInternal);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initState().initParts(1)[0].setRetainedFrom(1); }),
            ErrorCode::kMalformed)
      << "keeps more than it has";
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initState().initParts(2); }), ErrorCode::kMalformed)
      << "one part twice";
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initSnapshotRequest().initParts(2); }), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initSettle().setWeights(3); }), ErrorCode::kInternal);
  for (const int weights : {0, 4, 255}) {
    EXPECT_EQ(frame_hostile_refusal([&](auto e) { e.initSettle().setWeights(static_cast<uint8_t>(weights)); }),
              ErrorCode::kMalformed)
        << weights;
  }
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initSnapshot().setPayloadHash(1); }), ErrorCode::kMalformed)
      << "without values";
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.setCollect(); }, example_payload()), ErrorCode::kMalformed)
      << "with values";
}

SharedBytes words(size_t count) { return SharedBytes::from(ByteBuffer(count * sizeof(uint32_t))); }

TEST(HostileFrame, PullsThatCannotBeAreRefused) {
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull(); }), ErrorCode::kInternal) << "asks for n alone";
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setCount(kPullValuesMax); }), ErrorCode::kInternal);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setCount(kPullValuesMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setOffset(kDimensionMax + 1); }), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setIndices(2); }, words(2)), ErrorCode::kInternal);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setIndices(2); }, words(3)), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setIndices(2); }), ErrorCode::kMalformed);
  EXPECT_EQ(
      frame_hostile_refusal([](auto e) { e.initPull().setIndices(kPullValuesMax + 1); }, words(kPullValuesMax + 1)),
      ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setIndices(2), e.getPull().setCount(1); }, words(2)),
            ErrorCode::kMalformed)
      << "both";
}

TEST(HostileFrame, PullsOfRunsThatCannotBeAreRefused) {
  const auto pull = [](uint32_t indices, uint32_t run) {
    return frame_hostile_refusal(
        [&](auto e) {
          e.initPull().setIndices(indices);
          e.getPull().setRun(run);
        },
        words(std::min(indices, kPullValuesMax)));
  };
  EXPECT_EQ(pull(2, 0), ErrorCode::kInternal) << "the indices alone, as version 2 writes it";
  EXPECT_EQ(pull(2, 1), ErrorCode::kInternal);
  EXPECT_EQ(pull(2, kPullValuesMax / 2), ErrorCode::kInternal);
  EXPECT_EQ(pull(1, kPullValuesMax), ErrorCode::kInternal);
  EXPECT_EQ(pull(2, kPullValuesMax / 2 + 1), ErrorCode::kLimitExceeded);
  EXPECT_EQ(pull(1, kPullValuesMax + 1), ErrorCode::kLimitExceeded);
  EXPECT_EQ(pull(1, UINT32_MAX), ErrorCode::kLimitExceeded);
  EXPECT_EQ(pull(1U << 16, 1U << 16), ErrorCode::kLimitExceeded) << "0 in 32 bits";
  EXPECT_EQ(pull(kPullValuesMax, UINT32_MAX), ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setRun(1); }), ErrorCode::kMalformed) << "no indices";
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPull().setRun(4), e.getPull().setCount(4); }),
            ErrorCode::kMalformed)
      << "a range";
}

TEST(HostileFrame, PulledAndPlacedWeightsMustBeAsManyAsTheySay) {
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPulled().setValues(2); }, words(2)), ErrorCode::kInternal);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPulled().setValues(2); }, words(1)), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPulled(); }, words(1)), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPulled().setCode(1); }), ErrorCode::kInternal);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPulled().setCode(60'000); }), ErrorCode::kUnsupported);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPulled().setValues(1), e.getPulled().setCode(1); }, words(1)),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPlace(); }, words(1)), ErrorCode::kInternal);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPlace(); }), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPlace(); }, example_payload()), ErrorCode::kMalformed)
      << "5 bytes";
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPlace(); }, words(kSnapshotRunBytes / 4 + 1)),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initPlace().setOffset(kDimensionMax); }, words(1)),
            ErrorCode::kMalformed);
}

TEST(HostileFrame, LivesThatDoNotComeBeforeTheLastAreRefused) {
  const auto summary = [](uint64_t incarnation, uint64_t step) {
    return frame_hostile_refusal([&](auto e) {
      auto entry = e.initFetched().initSummary().initWorkers(1)[0];
      entry.setIncarnation(3), entry.setLastStep(9);
      entry.initEarlierIncarnations(1)[0].setIncarnation(incarnation),
          entry.getEarlierIncarnations()[0].setLastStep(step);
    });
  };
  EXPECT_EQ(summary(2, 8), ErrorCode::kInternal);
  EXPECT_EQ(summary(3, 8), ErrorCode::kMalformed);
  EXPECT_EQ(summary(2, 9), ErrorCode::kMalformed);
}

TEST(HostileFrame, AMembershipWithInvalidBranchesIsRefused) {
  const auto view = [](uint64_t branch, uint64_t parent, uint32_t shard, uint64_t cut) {
    return frame_hostile_refusal([&](auto e) {
      auto out = e.initMembershipChange().initMembership();
      out.initShards(1), out.setBranches(2), out.setEpoch(5), out.setCut(cut);
      auto activation = out.initActivations(1)[0];
      activation.setBranch(branch), activation.setParent(parent), activation.setShard(shard);
    });
  };
  EXPECT_EQ(view(2, 1, 0, 5), ErrorCode::kInternal);
  EXPECT_EQ(view(3, 1, 0, 5), ErrorCode::kMalformed);
  EXPECT_EQ(view(2, 2, 0, 5), ErrorCode::kMalformed);
  EXPECT_EQ(view(2, 1, 1, 5), ErrorCode::kMalformed);
  EXPECT_EQ(view(2, 1, 0, 6), ErrorCode::kMalformed);
}

TEST(HostileFrame, AnAddressWithControlCharactersIsRefused) {
  EXPECT_EQ(frame_hostile_refusal(
                [](auto e) { e.initMembershipChange().initMembership().initShards(1)[0].setAddress("tcp://a\n:1"); }),
            ErrorCode::kMalformed);
}

TEST(HostileFrame, AGoodbyeOfMoreShardsThanThereCanBeIsRefused) {
  const auto refusal_of = [](uint32_t shards) {
    return frame_hostile_refusal([shards](auto e) {
      auto goodbye = e.initGoodbye();
      goodbye.setReason(1);
      goodbye.initReach(shards);
    });
  };
  EXPECT_EQ(refusal_of(kShardsMax), ErrorCode::kInternal) << "it is read";
  EXPECT_EQ(refusal_of(kShardsMax + 1), ErrorCode::kLimitExceeded);
}

wire::Hello::Builder init_hello(wire::Envelope::Builder envelope, const ByteBuffer& spec) {
  auto hello = envelope.initHello();
  hello.setVersionMin(kProtocolVersion);
  hello.setVersionMax(kProtocolVersion);
  hello.setShardCount(1);
  hello.setSpec(capnp::Data::Reader(spec.data(), spec.size()));
  hello.setSpecHash(hash64(ByteSpan(spec)));
  return hello;
}

TEST(HostileFrame, AHelloMustHoldTogether) {
  const ByteBuffer spec = encode_job_spec(example_spec());
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { init_hello(e, spec); }), ErrorCode::kInternal);
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { init_hello(e, spec).setSpecHash(1); }), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { init_hello(e, spec).setShardCount(0); }), ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { init_hello(e, spec).setShardCount(kShardsMax + 1); }),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { init_hello(e, spec).setVersionMin(kProtocolVersion + 1); }),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { init_hello(e, spec).initAuth(kAuthBytesMax + 1); }),
            ErrorCode::kLimitExceeded);
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { init_hello(e, ByteBuffer{spec[0], spec[1], 3}); }),
            ErrorCode::kMalformed);
  EXPECT_EQ(frame_hostile_refusal([&](auto e) { init_hello(e, ByteBuffer(kJobSpecBytesMax + 1)); }),
            ErrorCode::kLimitExceeded);
}

TEST(HostileFrame, AWelcomeInAVersionThatWasNotOfferedIsRefused) {
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initWelcome().setVersion(kProtocolVersion + 1); }),
            ErrorCode::kVersionMismatch);
  EXPECT_EQ(frame_hostile_refusal([](auto e) { e.initWelcome().setVersion(0); }), ErrorCode::kVersionMismatch);
}

TEST(HostileFrame, PointersThatShareTheirTargetDoNotAmplify) {
  // A thousand shards whose addresses are all the one text: read naively this is a thousand times the envelope.
  capnp::MallocMessageBuilder builder(16'384);
  auto envelope = builder.initRoot<wire::Envelope>();
  auto shards = envelope.initMembershipChange().initMembership().initShards(kShardsMax);
  shards[0].initAddress(kAddressBytesMax);
  ByteBuffer bytes = frame_hostile_bytes_of(builder);
  // Each element is (incarnation, pointer): give every pointer the first one's target by an offset that counts back.
  const size_t words = bytes.size() / 8;
  std::vector<uint64_t> word(words);
  std::memcpy(word.data(), bytes.data(), bytes.size());
  size_t first_pointer = 0;
  for (size_t i = 0; i < words && first_pointer == 0; ++i) {
    if ((word[i] & 3) == 1 && (word[i] >> 35) == kAddressBytesMax + 1) first_pointer = i;
  }
  ASSERT_GT(first_pointer, 0u);
  const auto offset = static_cast<int64_t>((word[first_pointer] & 0xFFFFFFFF) >> 2);
  for (int64_t i = 1; i < kShardsMax; ++i) {
    const auto moved = static_cast<uint32_t>((offset - 2 * i) << 2) | 1;
    word[first_pointer + 2 * static_cast<size_t>(i)] = (word[first_pointer] & ~uint64_t{0xFFFFFFFF}) | moved;
  }
  std::memcpy(bytes.data(), word.data(), bytes.size());
  const auto decoded = decode_message(bytes, {}, {});
  ASSERT_FALSE(decoded);
  EXPECT_NE(decoded.error().message.find("traversal"), std::string::npos) << decoded.error().message;
}

TEST(HostileFrame, AnyNumberInTheSegmentTableIsRefusedOrHolds) {
  const Message message = every_message()[1];
  const ByteBuffer envelope = encode_envelope(message);
  for (const uint32_t segments : {1u, 2u, 63u, 64u, 1000u, 0x7FFFFFFFu, 0xFFFFFFFEu, 0xFFFFFFFFu}) {
    ByteBuffer damaged = envelope;
    std::memcpy(damaged.data(), &segments, sizeof(segments));
    EXPECT_FALSE(decode_message(damaged, {}, {})) << segments;
    damaged = envelope;
    std::memcpy(damaged.data() + 4, &segments, sizeof(segments));
    EXPECT_FALSE(decode_message(damaged, {}, {})) << segments;
  }
}

}  // namespace
}  // namespace millrace::protocol

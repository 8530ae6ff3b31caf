#pragma once

#include <vector>

#include "protocol/messages/messages.h"
#include "tests/protocol/example_spec.h"

namespace millrace::protocol {

inline Membership example_view() {
  Membership membership;
  membership.job = 7;
  membership.epoch = 5;
  membership.started = true;
  membership.members = {{.worker = 0, .incarnation = 1, .nonce = 0x1122334455667788},
                        {.worker = 3, .incarnation = 2, .nonce = 99, .state = MemberState::kJoining}};
  membership.shards = {{"tcp://127.0.0.1:5555", 1}, {"tcp://[::1]:6666", 4}};
  membership.branches = 3;
  membership.activations = {{0, 1, 0}, {0, 3, 1}, {1, 3, 0}};
  membership.cut = 4;
  membership.cut_worker = 3;
  membership.left = 2;
  return membership;
}

inline SharedBytes example_payload() { return SharedBytes::from(ByteBuffer{1, 2, 3, 4, 5}); }

inline Header example_header() {
  return {.job = 7, .epoch = 5, .worker = 3, .incarnation = 2, .shard = 1, .shard_incarnation = 4};
}

inline Update example_update() {
  Update update;
  update.part = 11;
  update.step = 12;
  update.decided_in = 4;
  update.contributors = {{0, 1}, {3, 2}};
  update.weight_sum = 1.5;
  update.whole_sum = false;
  update.stable = 10;
  update.branch = 3;
  update.summary.workers = {{.worker = 0,
                             .incarnation = 1,
                             .last_step = 12,
                             .counted_mask = 3,
                             .entered = -1.5,
                             .carried = 2.5,
                             .lost = 0.75},
                            {.worker = 3,
                             .incarnation = 4,
                             .last_step = 11,
                             .counted_mask = 7,
                             .entered = 0.5,
                             .carried = 0.25,
                             .earlier_incarnations = {{1, 9}, {2, 10}}}};
  update.summary.epochs = {{1, 0}, {4, 9}};
  update.summary.threshold = 0.125;
  update.summary.log_digest = 0x2345;
  return update;
}

/// Those of the return of shards and workers.
inline std::vector<Message> every_message_of_returns() {
  const Header header = example_header();
  const Update update = example_update();
  return {
      {header, Collect{}, {}},
      {header, State{true, true, {{0, 4, 3, 1, 2}, {11, 12, 4, 3, 12}}}, {}},
      {header, Fetch{11, 10}, {}},
      {header, Fetched{11, 12, 4, update.summary}, {}},
      {header, Settle{11, 12, 3, true, Settle::Weights::kSnapshot, update.summary.workers[1]}, {}},
      {header, SnapshotRequest{2, 5, {0, 11}}, {}},
      {header, Snapshot{11, 2, 5, 12, 4, 1'000, 0x77, update.summary}, example_payload()},
      {header, Synced{}, {}},
  };
}

/// Those of the parameter store.
inline std::vector<Message> every_message_of_the_store() {
  const Header header = example_header();
  const SharedBytes words = SharedBytes::from(ByteBuffer{1, 0, 0, 0, 5, 0, 0, 0});
  return {
      {header, Pull{5, 11, 0, 12, 100, 1'000}, {}},
      {header, Pulled{5, 11, 2, 13, 0x77, std::nullopt, ""}, words},
      {header, Place{11, 1'000, 0x78}, words},
  };
}

/// One message of every kind, every field set to something that is not its default.
inline std::vector<Message> every_message() {
  const Header header = example_header();
  Hello hello;
  hello.capabilities = 6;
  hello.software = "millrace 0.1.0";
  hello.nonce = 0xFEDCBA9876543210;
  hello.spec = example_spec();
  hello.shard_count = 2;
  hello.layout_hash = 77;
  hello.auth = {9, 8};
  hello.returns = true;
  hello.has_weights = true;
  Welcome welcome;
  welcome.capabilities = 6;
  welcome.software = "millrace 0.1.0";
  welcome.membership = example_view();
  welcome.heartbeat_ms = 1'000;
  welcome.dead_after_ms = 10'000;
  welcome.message_bytes_max = 1u << 30;
  const Update update = example_update();
  Ack ack;
  ack.entries = {{0, 4}, {11, 12}};
  Heartbeat heartbeat;
  heartbeat.sequence = 3;
  heartbeat.steps_applied = 12;
  heartbeat.digests = {{3, 12, 0xABCD}, {7, 13, 0xEF01}};
  heartbeat.waited_for = {1, 2};
  heartbeat.decided = {{3, 14}, {5, 13}};
  heartbeat.switch_state = Heartbeat::Switch::kAnswers;
  heartbeat.switch_wait = Heartbeat::SwitchWait::kGreetings;
  heartbeat.switch_steps = 15;
  ShardHello shard_hello;
  shard_hello.shard_map_hash = 0x1234;
  shard_hello.software = "millrace 0.1.0";
  std::vector<Message> messages = {
      {header, hello, {}},
      {header, welcome, {}},
      {header, Refuse{ErrorCode::kConflict, "other bytes under the same identity", true, true, 11, 12}, {}},
      {header, MembershipChange{example_view(), {7, 8}}, {}},
      {header,
       Contribution{
           .part = 11, .step = 12, .payload_hash = 13, .weight = 2, .entered = 0.5, .lost = -0.25, .imbalance = 0.125},
       example_payload()},
      {header, Duplicate{11, 12}, {}},
      {header, update, example_payload()},
      {header, StepDecided{11, 12, true}, {}},
      {header, ack, {}},
      {header, heartbeat, {}},
      {header, shard_hello, {}},
      {header, ThresholdHistogram{2, 12, 14}, example_payload()},
      {header, Goodbye{Goodbye::Reason::kFailed, "disk full", {{12, 5}, {}, {11, 6}}}, {}},
      {header, Abort{ErrorCode::kShardLost, "shard 1 came back without its state"}, {}},
  };
  for (Message& message : every_message_of_returns()) messages.push_back(std::move(message));
  for (Message& message : every_message_of_the_store()) messages.push_back(std::move(message));
  return messages;
}

}  // namespace millrace::protocol

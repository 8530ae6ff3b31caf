// protocol/vectors/messages.json: a message of every kind as the two frames that travel.
#include <gtest/gtest.h>

#include <set>

#include "kernels/base/hash.h"
#include "protocol/container/container.h"
#include "protocol/messages/frame.h"
#include "tests/protocol/example_messages.h"
#include "tests/protocol/vectors/capnp_json.h"
#include "tests/protocol/vectors/vector_file.h"

namespace millrace::testing {
namespace {

using protocol::Message;

const VectorFile kMessageFile{
    .name = "messages.json",
    .format = "messages",
    .version = protocol::kProtocolVersion,
    .change =
        "Raise kProtocolVersion in protocol/messages/messages.h, or where the job specification of Hello changed "
        "kSpecVersion in protocol/job/job_spec_bytes.cc (protocol/wire/versions.md).",
};

struct NamedMessage {
  std::string name;
  Message message;
};

SharedBytes container_of_vectors() {
  Stream stream = Stream::empty(16);
  stream.indices = {1, 4, 5};
  stream.values = {1, -2, 0.5F};
  auto encoded = encode_container(stream.view(), {}, {});
  EXPECT_TRUE(encoded);
  return SharedBytes::from(std::move(encoded->bytes));
}

/// Sets fields that the examples leave at their default, and payloads as their messages describe them.
void fill_fields(protocol::Body& body) {
  if (auto* welcome = std::get_if<protocol::Welcome>(&body)) {
    welcome->membership.path = protocol::Path::kSwitch;
    welcome->membership.shards[0].datagrams = "127.0.0.1:5557";
  } else if (auto* change = std::get_if<protocol::MembershipChange>(&body)) {
    change->membership.finished = true;
  } else if (auto* contribution = std::get_if<protocol::Contribution>(&body)) {
    contribution->again = true;
  } else if (auto* ack = std::get_if<protocol::Ack>(&body)) {
    ack->entries.back().again = true;
  } else if (auto* heartbeat = std::get_if<protocol::Heartbeat>(&body)) {
    heartbeat->finishing = true;
  }
}

/// Adds what only asynchronous jobs have, and what excludes another field.
void add_other_messages(std::vector<NamedMessage>& messages) {
  const protocol::Header header = protocol::example_header();
  protocol::Update single = protocol::example_update();
  single.whole_sum = true;
  single.contributors = {{.worker = 3, .incarnation = 2, .sequence = 8}};
  single.summary.workers[1].sequence = 9;
  single.summary.workers[1].counted_mask = 1;
  messages.push_back({"update of a step of mode asynchronous", {header, single, container_of_vectors()}});
  protocol::Update merged = single;
  merged.contributors.clear();
  merged.merged = {{{0, 1, 7}, 0.5, 0x1122334455667788}, {{3, 2, 8}, 1, 0x99AABBCCDDEEFF00}};
  messages.push_back({"update of merged steps", {header, merged, container_of_vectors()}});
  messages.push_back({"pull of two indices",
                      {header, protocol::Pull{.id = 6, .part = 11, .indices = 2, .at_least = 12},
                       SharedBytes::from(ByteBuffer{1, 0, 0, 0, 5, 0, 0, 0})}});
  messages.push_back({"pull of two runs of three",
                      {header, protocol::Pull{.id = 7, .part = 11, .indices = 2, .at_least = 12, .run = 3},
                       SharedBytes::from(ByteBuffer{1, 0, 0, 0, 5, 0, 0, 0})}});
  messages.push_back(
      {"pulled, refused",
       {header,
        protocol::Pulled{
            .id = 5, .part = 11, .code = ErrorCode::kInvalidArgument, .sentence = "the part has no index 1000"},
        {}}});
  messages.push_back({"settle of a worker of which nothing was counted",
                      {header, protocol::Settle{.part = 11, .decided = 12, .branch = 3, .counted = {}}, {}}});
}

std::vector<NamedMessage> named_messages() {
  std::vector<NamedMessage> messages;
  for (Message& message : protocol::every_message()) {
    fill_fields(message.body);
    const SharedBytes container = container_of_vectors();
    if (auto* contribution = std::get_if<protocol::Contribution>(&message.body)) {
      message.payload = container;
      contribution->payload_hash = container_identity(container.bytes).value();
    } else if (std::holds_alternative<protocol::Update>(message.body)) {
      message.payload = container;
    }
    messages.push_back({std::string(protocol::body_name(message.body)), std::move(message)});
  }
  add_other_messages(messages);
  return messages;
}

VectorJson message_vectors() {
  VectorJson json = vector_file_head(kMessageFile);
  json["vectors"] = VectorJson::array();
  for (const NamedMessage& of : named_messages()) {
    const ByteBuffer envelope = encode_envelope(of.message);
    json["vectors"].push_back({{"name", of.name},
                               {"kind", protocol::body_name(of.message.body)},
                               {"envelope", hex_text(envelope)},
                               {"payload", hex_text(of.message.payload.bytes)},
                               {"decoded", envelope_json(envelope)}});
  }
  return json;
}

TEST(MessageVectors, TheCodeReproducesTheVectors) { expect_vectors(kMessageFile, message_vectors()); }

TEST(MessageVectors, DecodeAsTheySayAndNoTruncationIsRead) {
  std::set<std::string> kinds;
  const VectorJson file = read_vectors(kMessageFile);
  for (const VectorJson& vector : file.at("vectors")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const ByteBuffer envelope = bytes_of(vector.at("envelope"));
    const ByteBuffer payload = bytes_of(vector.at("payload"));
    EXPECT_EQ(envelope_json(envelope), vector.at("decoded"));
    const auto message = protocol::decode_message(envelope, SharedBytes::from(ByteBuffer(payload)), {});
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(protocol::body_name(message->body), vector.at("kind").get<std::string>());
    EXPECT_EQ(hex_text(encode_envelope(*message)), vector.at("envelope").get<std::string>());
    kinds.insert(vector.at("kind").get<std::string>());
    const auto refused = [](const ByteBuffer& frame, const ByteBuffer& other) {
      return !protocol::decode_message(frame, SharedBytes::from(ByteBuffer(other)), {}).has_value();
    };
    expect_truncations_refused(envelope, [&](const ByteBuffer& cut) { return refused(cut, payload); });
    expect_truncations_refused(payload, [&](const ByteBuffer& cut) { return refused(envelope, cut); });
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<protocol::AnyBody>) << "a kind of message has no vector";
}

TEST(MessageVectors, AreTheMessagesThatWereMade) {
  const VectorJson file = read_vectors(kMessageFile);
  const std::vector<NamedMessage> messages = named_messages();
  ASSERT_EQ(file.at("vectors").size(), messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    SCOPED_TRACE(messages[i].name);
    const VectorJson& vector = file.at("vectors")[i];
    const auto message = protocol::decode_message(bytes_of(vector.at("envelope")),
                                                  SharedBytes::from(bytes_of(vector.at("payload"))), {});
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(message->header, messages[i].message.header);
    EXPECT_TRUE(message->body == messages[i].message.body);
  }
}

TEST(MessageVectors, SetEveryFieldOfTheSchema) {
  std::set<std::string> set;
  const VectorJson file = read_vectors(kMessageFile);
  for (const VectorJson& vector : file.at("vectors")) {
    note_fields_set(bytes_of(vector.at("envelope")), set);
  }
  std::set<std::string> lacking;
  for (const std::string& field : schema_fields()) {
    if (!set.contains(field)) lacking.insert(field);
  }
  // Fields that a writer of this version leaves at 0, and the placeholder for later versions.
  const std::set<std::string> reserved = {"Envelope.later", "Heartbeat.weightsDigest"};
  EXPECT_EQ(lacking, reserved);
}

}  // namespace
}  // namespace millrace::testing

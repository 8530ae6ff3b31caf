#include "protocol/messages/kj_compare.h"  // before the others

#include "tests/protocol/vectors/capnp_json.h"

#include <capnp/dynamic.h>
#include <capnp/message.h>
#include <capnp/schema.h>
#include <capnp/serialize.h>

#include <algorithm>

#include "protocol/messages/messages.capnp.h"

namespace millrace::testing {
namespace {

std::string struct_name(capnp::StructSchema schema) { return schema.getShortDisplayName().cStr(); }

VectorJson struct_json(capnp::DynamicStruct::Reader from);

VectorJson capnp_value_json(const capnp::DynamicValue::Reader& value) {
  switch (value.getType()) {
    case capnp::DynamicValue::BOOL: return value.as<bool>();
    case capnp::DynamicValue::INT: return value.as<int64_t>();
    case capnp::DynamicValue::UINT: return value.as<uint64_t>();
    case capnp::DynamicValue::FLOAT: return value.as<double>();
    case capnp::DynamicValue::TEXT: return value.as<capnp::Text>().cStr();
    case capnp::DynamicValue::DATA: {
      const auto data = value.as<capnp::Data>();
      return hex_text(ByteSpan(data.begin(), data.size()));
    }
    case capnp::DynamicValue::LIST: {
      VectorJson list = VectorJson::array();
      for (const auto element : value.as<capnp::DynamicList>()) list.push_back(capnp_value_json(element));
      return list;
    }
    case capnp::DynamicValue::STRUCT: return struct_json(value.as<capnp::DynamicStruct>());
    default: return nullptr;  // Void
  }
}

VectorJson struct_json(capnp::DynamicStruct::Reader from) {
  VectorJson json = VectorJson::object();
  for (const auto field : from.getSchema().getNonUnionFields()) {
    const bool is_there = !field.getType().isStruct() || from.has(field);
    json[field.getProto().getName().cStr()] = is_there ? capnp_value_json(from.get(field)) : VectorJson();
  }
  KJ_IF_MAYBE (field, from.which()) {
    json[field->getProto().getName().cStr()] = capnp_value_json(from.get(*field));
  }
  return json;
}

/// Reads the envelope and hands its root to `read`.
template <typename Read>
void with_envelope(ByteSpan envelope, const Read& read) {
  kj::Array<capnp::word> words = kj::heapArray<capnp::word>(envelope.size() / sizeof(capnp::word));
  kj::ArrayPtr<kj::byte> bytes = words.asBytes();
  std::copy(envelope.begin(), envelope.begin() + static_cast<std::ptrdiff_t>(bytes.size()), bytes.begin());
  capnp::FlatArrayMessageReader reader(words);
  read(reader.getRoot<capnp::DynamicStruct>(capnp::Schema::from<protocol::wire::Envelope>()));
}

void note_struct(capnp::DynamicStruct::Reader from, std::set<std::string>& set);

void note_value(const capnp::DynamicValue::Reader& value, std::set<std::string>& set) {
  if (value.getType() == capnp::DynamicValue::STRUCT) note_struct(value.as<capnp::DynamicStruct>(), set);
  if (value.getType() != capnp::DynamicValue::LIST) return;
  for (const auto element : value.as<capnp::DynamicList>()) note_value(element, set);
}

void note_struct(capnp::DynamicStruct::Reader from, std::set<std::string>& set) {
  const std::string name = struct_name(from.getSchema());
  for (const auto field : from.getSchema().getFields()) {
    if (!from.has(field, capnp::HasMode::NON_DEFAULT) && !field.getType().isVoid()) continue;
    KJ_IF_MAYBE (which, from.which()) {
      if (field.getProto().getDiscriminantValue() != capnp::schema::Field::NO_DISCRIMINANT && field != *which) continue;
    }
    set.insert(name + "." + field.getProto().getName().cStr());
    note_value(from.get(field), set);
  }
}

void add_fields_of(capnp::Type type, std::set<std::string>& fields) {
  while (type.isList()) type = type.asList().getElementType();
  if (!type.isStruct()) return;
  const std::string name = struct_name(type.asStruct());
  for (const auto field : type.asStruct().getFields()) {
    if (fields.insert(name + "." + field.getProto().getName().cStr()).second) add_fields_of(field.getType(), fields);
  }
}

}  // namespace

VectorJson envelope_json(ByteSpan envelope) {
  VectorJson json;
  with_envelope(envelope, [&](capnp::DynamicStruct::Reader root) { json = struct_json(root); });
  return json;
}

void note_fields_set(ByteSpan envelope, std::set<std::string>& set) {
  with_envelope(envelope, [&](capnp::DynamicStruct::Reader root) { note_struct(root, set); });
}

std::set<std::string> schema_fields() {
  std::set<std::string> fields;
  add_fields_of(capnp::Schema::from<protocol::wire::Envelope>(), fields);
  return fields;
}

}  // namespace millrace::testing

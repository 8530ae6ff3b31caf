#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/messages/messages.h"
#include "protocol/table/etcd_transaction.h"

/// The values of the table's keys in etcd. Internal to protocol/table.
namespace millrace::protocol {

/// Reads a decimal number that is all of the text.
std::optional<uint64_t> number_of(std::string_view text);

/// Returns the value of a shard's key: address, datagrams, and their checksum. The key's version is the incarnation.
std::string value_of_start(uint32_t shard, std::string_view address, std::string_view datagrams);

/// Reads value_of_start(), without an incarnation. Empty: it is damaged.
std::optional<ShardEntry> start_of_value(uint32_t shard, std::string_view value);

/// Returns the first entry of the range, or nullptr.
const EtcdEntry* first_of(const EtcdAnswer& answer, size_t range);

}  // namespace millrace::protocol

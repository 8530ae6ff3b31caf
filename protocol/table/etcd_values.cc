#include "protocol/table/etcd_values.h"

#include <fmt/format.h>

#include <charconv>

#include "protocol/table/table_rules.h"

namespace millrace::protocol {

std::optional<uint64_t> number_of(std::string_view text) {
  uint64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string value_of_start(uint32_t shard, std::string_view address, std::string_view datagrams) {
  const ShardEntry start{std::string(address), 0, std::string(datagrams)};
  return fmt::format("{}\n{}\n{:016x}", address, datagrams, hash_of_start(shard, start));
}

std::optional<ShardEntry> start_of_value(uint32_t shard, std::string_view value) {
  const size_t first = value.find('\n');
  const size_t second = first == std::string_view::npos ? first : value.find('\n', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  ShardEntry start{std::string(value.substr(0, first)), 0, std::string(value.substr(first + 1, second - first - 1))};
  if (value != value_of_start(shard, start.address, start.datagrams)) return std::nullopt;
  return start;
}

const EtcdEntry* first_of(const EtcdAnswer& answer, size_t range) {
  return range < answer.ranges.size() && !answer.ranges[range].empty() ? &answer.ranges[range][0] : nullptr;
}

}  // namespace millrace::protocol

#include "worker/program/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/plain_text.h"
#include "worker/program/json_text.h"
#include "worker/program/progress.h"

namespace millrace::program {
namespace {

/// Returns a name or a text of another process such that nothing of it reaches the terminal as a command.
std::string printable(const std::string& text) { return plain_text_of(text, text.size()); }

std::string cell(const nlohmann::json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  if (value.is_number_unsigned()) return grouped(value.get<uint64_t>());
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const bool large = number >= 1000 && number < 1e15;
    return large ? grouped(static_cast<uint64_t>(std::llround(number))) : fmt::format("{:.4g}", number);
  }
  return value.is_null() ? "-" : json_text(value);
}

std::vector<std::string> keys_of(const nlohmann::json& row) {
  std::vector<std::string> keys = {"algorithm"};
  for (const auto& [key, value] : row.items()) {
    if (key != "algorithm" && !value.is_structured()) keys.push_back(key);
  }
  return keys;
}

std::vector<std::string> printable_keys(const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  for (const std::string& key : keys) texts.push_back(printable(key));
  return texts;
}

/// Columns as wide as terminal columns: bytes that continue a UTF-8 character take none.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & '\xc0') != '\x80'; }));
}

}  // namespace

std::string aligned_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t at = 0; at < row.size(); ++at) widths[at] = std::max(widths[at], width_of(row[at]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t at = 0; at < row.size(); ++at) {
      const std::string pad(widths[at] - width_of(row[at]), ' ');
      line += at == 0 ? row[at] + pad : "  " + pad + row[at];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (&row != &rows.front()) continue;
    size_t total = 2 * (widths.size() - 1);
    for (const size_t width : widths) total += width;
    text += std::string(total, '-') + "\n";
  }
  return text;
}

std::string bench_table(const nlohmann::json& bench) {
  std::string text;
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> rows;
  const auto flush = [&] {
    if (!rows.empty()) text += (text.empty() ? "" : "\n") + aligned_table(rows);
    rows.clear();
  };
  for (const nlohmann::json& row : bench.at("rows")) {
    if (std::vector<std::string> own = keys_of(row); own != keys) {
      flush();
      keys = std::move(own);
      rows.push_back(printable_keys(keys));
    }
    std::vector<std::string> cells;
    for (const std::string& key : keys) cells.push_back(cell(row.value(key, nlohmann::json())));
    rows.push_back(std::move(cells));
  }
  flush();
  return text;
}

namespace {

bool is_flat(const nlohmann::json& object) {
  return object.is_object() && std::ranges::none_of(object, [](const auto& value) { return value.is_structured(); });
}

std::string indented(const std::string& text, size_t indent) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += std::string(indent, ' ') + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return out;
}

/// Objects without inner structure and with the same keys, one a row.
std::string objects_table(const nlohmann::json& objects) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : objects.front().items()) keys.push_back(key);
  std::vector<std::vector<std::string>> rows = {printable_keys(keys)};
  for (const nlohmann::json& object : objects) {
    std::vector<std::string>& cells = rows.emplace_back();
    for (const std::string& key : keys) cells.push_back(cell(object.value(key, nlohmann::json())));
  }
  return aligned_table(rows);
}

std::string array_text(const nlohmann::json& array, size_t indent) {
  if (std::ranges::all_of(array, is_flat)) return indented(objects_table(array), indent);
  std::string text;
  for (const nlohmann::json& item : array) {
    text += item.is_object() ? object_text(item, indent) + "\n" : indented(cell(item), indent);
  }
  return text;
}

}  // namespace

std::string object_text(const nlohmann::json& object, size_t indent) {
  std::string text;
  const std::string margin(indent, ' ');
  for (const auto& [key, value] : object.items()) {
    const bool plain_list =
        value.is_array() && std::ranges::none_of(value, [](const auto& item) { return item.is_structured(); });
    if (!value.is_structured()) text += margin + printable(key) + ": " + cell(value) + "\n";
    if (plain_list) text += margin + printable(key) + ": " + (value.empty() ? "-" : json_text(value)) + "\n";
  }
  for (const auto& [key, value] : object.items()) {
    const bool plain_list =
        value.is_array() && std::ranges::none_of(value, [](const auto& item) { return item.is_structured(); });
    if (!value.is_structured() || plain_list) continue;
    text += margin + printable(key) + ":\n" +
            (value.is_array() ? array_text(value, indent + 2) : object_text(value, indent + 2));
  }
  return text;
}

}  // namespace millrace::program

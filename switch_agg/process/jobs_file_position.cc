#include "switch_agg/process/jobs_file_position.h"

#include <nlohmann/json.hpp>

namespace millrace::switch_agg {
namespace {

/// Takes everything and keeps nothing but what stops the parser.
class FaultFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    fault_ = error.what();
    return false;
  }
  const std::string& fault() const { return fault_; }

 private:
  std::string fault_;
};

}  // namespace

std::string json_fault(std::string_view text) {
  FaultFinder finder;
  if (nlohmann::json::sax_parse(text, &finder)) return {};
  // "[json.exception.parse_error.101] parse error at line 3, column 7: syntax error while parsing array - unexpected
  // '}'; …"
  std::string_view fault = finder.fault();
  constexpr std::string_view kBefore = "parse error at ";
  if (const size_t at = fault.find(kBefore); at != std::string_view::npos) fault.remove_prefix(at + kBefore.size());
  return std::string(fault);
}

size_t line_of_job(std::string_view text, size_t number) {
  constexpr size_t kDepthOfList = 2;
  size_t line = 1;
  size_t depth = 0;
  bool quoted = false;
  bool next_begins = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\n') ++line;
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') continue;
    if (next_begins && number-- == 0) return line;
    next_begins = false;
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    next_begins = depth == kDepthOfList && (c == '[' || c == ',');
  }
  return line;
}

}  // namespace millrace::switch_agg

#include "tests/protocol/vectors/vector_file.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/tree_paths.h"

namespace millrace::testing {
namespace {

bool is_writing() {
  const char* asked = std::getenv("MILLRACE_WRITE_VECTORS");
  return asked != nullptr && std::string_view(asked) == "1";
}

std::string place_of(const VectorFile& file) { return source_file("protocol/vectors/" + file.name); }

/// A list of objects has a line for each, so that a change shows as the vectors that it is of.
std::string vector_file_text(const VectorJson& json) {
  std::string text = "{";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    text += first ? "\n" : ",\n";
    first = false;
    text += VectorJson(key).dump() + ": ";
    if (!value.is_array() || value.empty()) {
      text += value.dump();
      continue;
    }
    text += "[";
    for (size_t i = 0; i < value.size(); ++i) text += (i == 0 ? "\n" : ",\n") + value[i].dump();
    text += "\n]";
  }
  return text + "\n}\n";
}

using VectorsByName = std::map<std::string, VectorJson>;

VectorsByName vectors_by_name(const VectorJson& json) {
  VectorsByName named;
  if (!json.contains("vectors")) return named;
  for (const VectorJson& vector : json["vectors"]) {
    EXPECT_TRUE(named.emplace(vector.at("name"), vector).second) << "two vectors of the name " << vector["name"];
  }
  return named;
}

/// Returns whether the key is a result of an encoder that may choose its code: the bytes, and their decoded values.
bool is_result(std::string_view key) { return key == "bytes" || key == "header" || key.starts_with("decoded"); }

bool same_input(const VectorJson& one, const VectorJson& other) {
  const auto input_of = [](const VectorJson& vector) {
    VectorJson input;
    for (const auto& [key, value] : vector.items()) {
      if (!is_result(key)) input[key] = value;
    }
    return input;
  };
  return input_of(one) == input_of(other);
}

void keep_free_encodings(const VectorsByName& kept, VectorJson& now) {
  if (!now.contains("vectors")) return;
  for (VectorJson& vector : now["vectors"]) {
    if (vector.value("encoding", "") != "free") continue;
    const auto found = kept.find(vector["name"]);
    if (found != kept.end() && same_input(found->second, vector)) vector = found->second;
  }
}

/// Returns whether every vector that both have has the same bytes, or the version is another.
bool bytes_fit_the_version(const VectorFile& file, const VectorJson& kept, const VectorJson& now) {
  if (kept.value("version", uint64_t{0}) != file.version) return true;
  bool fit = true;
  const VectorsByName before = vectors_by_name(kept);
  for (const auto& [name, vector] : vectors_by_name(now)) {
    const auto found = before.find(name);
    if (found == before.end()) continue;
    for (const char* key : {"bytes", "envelope", "payload"}) {
      if (found->second.value(key, VectorJson()) == vector.value(key, VectorJson())) continue;
      fit = false;
      ADD_FAILURE() << file.path() << ": the " << key << " of vector '" << name << "' are others now. " << file.change
                    << " Where the input of the vector was changed on purpose, give it another name.";
    }
  }
  return fit;
}

}  // namespace

std::string VectorFile::path() const { return "protocol/vectors/" + name; }

VectorJson vector_file_head(const VectorFile& file) {
  VectorJson json;
  json["format"] = file.format;
  if (file.version != 0) json["version"] = file.version;
  return json;
}

VectorJson read_vectors(const VectorFile& file) {
  std::ifstream stream(place_of(file));
  VectorJson json = VectorJson::parse(stream, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << file.path() << " is not there, or no JSON: make it by running this test with "
                                    << "MILLRACE_WRITE_VECTORS=1";
  return json.is_discarded() ? VectorJson::object() : json;
}

void expect_vectors(const VectorFile& file, VectorJson now) {
  std::ifstream stream(place_of(file));
  std::stringstream text;
  text << stream.rdbuf();
  VectorJson kept = VectorJson::parse(text.str(), nullptr, false);
  if (kept.is_discarded()) kept = VectorJson::object();
  keep_free_encodings(vectors_by_name(kept), now);
  if (!bytes_fit_the_version(file, kept, now)) return;
  const std::string expected = vector_file_text(now);
  if (is_writing()) {
    std::ofstream(place_of(file)) << expected;
    return;
  }
  EXPECT_TRUE(text.str() == expected) << file.path()
                                      << " differs from the vectors that the code makes: run this test with "
                                      << "MILLRACE_WRITE_VECTORS=1, look at the difference, and commit it";
}

}  // namespace millrace::testing

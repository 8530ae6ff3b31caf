#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/keys/key.h"

namespace millrace::protocol {

/// Holds a key that is allowed no longer.
struct EndedKey {
  std::string name;
  PublicKey key;
  std::string sentence;  ///< for logs
};

/// Holds the public keys that may connect, each with its name, and some with an end.
class AllowedKeys {
 public:
  static constexpr size_t kMax = 65'536;

  /// Reads a folder or a list. A folder has NAME.pub files, as `millrace keys new` writes them; other names, and names
  /// that begin with a dot, are left out. A list has lines "NAME 64-DIGITS [until YYYY-MM-DD]", empty lines, and lines
  /// that begin with #. Keys that have ended are read as well: end_keys().
  ///
  /// own      the reader's own key: a folder's file of it is left out.
  /// Skipped  files of a folder that allow no key: problems() has a sentence for each. One wrong file must not keep
  ///          the key of another allowed that was taken away. Of two files with one key the first name counts.
  /// Errors   io, also of one file that is there. limit_exceeded: more than kMax keys. invalid_argument: a folder or
  ///          list that all users may write, or that belongs to another user; the line of a list, with its number.
  static Result<AllowedKeys> read(const std::string& path, const PublicKey& own = {});
  /// Reads the text of a list. `what` names it in sentences.
  static Result<AllowedKeys> of_list(std::string_view text, const std::string& what);

  /// Errors  as read().
  Status add(const std::string& name, const PublicKey& key, KeyEnd end = {});
  /// Returns its name; nullptr: it is not allowed.
  const std::string* name_of(const PublicKey& key) const;
  /// Returns the key of that name; nullptr: there is none.
  const PublicKey* key_of(const std::string& name) const;
  /// Takes the key of that name away, as a skipped file.
  void skip(const std::string& name, std::string problem);
  /// Takes the keys away that have ended by this day, UTC, and returns them.
  std::vector<EndedKey> end_keys(std::chrono::sys_days today);
  /// Returns the first end of a key that is allowed, or of the reader's own where it was among them; empty: none has an
  /// end.
  KeyEnd first_end() const;
  const std::vector<std::string>& problems() const { return problems_; }
  size_t count() const { return names_.size(); }
  const std::map<std::string, PublicKey>& keys() const { return keys_; }  ///< by name

 private:
  static Result<AllowedKeys> read_folder(const std::string& path, const PublicKey& own);
  void remove(const std::string& name);
  std::unordered_map<PublicKey, std::string> names_;
  std::map<std::string, PublicKey> keys_;
  std::map<std::string, std::chrono::sys_days> ends_;  ///< end date by key name, where a key has one
  KeyEnd own_end_;
  std::vector<std::string> problems_;
};

}  // namespace millrace::protocol

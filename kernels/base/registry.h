#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace millrace {

/// Holds the algorithms of one kind that this build has, in the order of their list. DESIGN.md has the mechanism.
///
/// Entry    one object for each algorithm. name_of(entry) returns its name; number_of(entry) returns its number on the
///          wire, where the kind has numbers.
/// Threads  immutable after construction. Not on the heap: preset tsan compiles kernels without ThreadSanitizer.
///          It would see the allocation, and no order between that and the first reader.
template <typename Entry, size_t kEntries>
class Registry {
 public:
  /// Aborts where two entries have one name or one number.
  template <typename... More>
  Registry(Entry first, More... more) : entries_{std::move(first), std::move(more)...} {
    for (auto one = entries_.begin(); one != entries_.end(); ++one) {
      const auto clashes = [&one](const Entry& other) {
        if (name_of(other) == name_of(*one)) return true;
        if constexpr (requires { number_of(other); }) return number_of(other) == number_of(*one);
        return false;
      };
      const auto twin = std::find_if(entries_.begin(), one, clashes);
      MILLRACE_CHECK(twin == one, name_of(*one), name_of(*twin));
    }
  }

  std::span<const Entry> entries() const { return entries_; }

  /// Return the entry, or nullptr: not of this build.
  const Entry* with_name(std::string_view name) const {
    return find([name](const Entry& entry) { return name_of(entry) == name; });
  }
  template <typename Number>
  const Entry* with_number(Number number) const {
    return find([number](const Entry& entry) { return number_of(entry) == number; });
  }

 private:
  template <typename Wanted>
  const Entry* find(Wanted wanted) const {
    const auto at = std::ranges::find_if(entries_, wanted);
    return at == entries_.end() ? nullptr : &*at;
  }

  std::array<Entry, kEntries> entries_;
};

template <typename Entry, typename... More>
Registry(Entry, More...) -> Registry<Entry, 1 + sizeof...(More)>;

/// Returns the member `info` of each entry, in the order of the list.
template <typename Entry, size_t kEntries>
auto infos_of(const Registry<Entry, kEntries>& registry) {
  std::array<decltype(Entry::info), kEntries> infos;
  std::ranges::transform(registry.entries(), infos.begin(), &Entry::info);
  return infos;
}

/// Returns what text_of(entry) gives for each entry.
template <typename Entries, typename TextOf>
std::vector<std::string> texts_of(const Entries& entries, TextOf text_of) {
  std::vector<std::string> texts;
  for (const auto& entry : entries) texts.emplace_back(text_of(entry));
  return texts;
}

/// Returns what text_of(entry) gives for each entry, with commas between: "raw, bitmap, gap".
template <typename Entries, typename TextOf>
std::string listed_texts(const Entries& entries, TextOf text_of) {
  std::string words;
  for (const auto& entry : entries) {
    if (!words.empty()) words += ", ";
    words += text_of(entry);
  }
  return words;
}

}  // namespace millrace

#include "worker/switch/applied_entries.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/grid/split_applied.h"
#include "protocol/datagram/window/window_code.h"

namespace millrace::worker {
namespace {

/// Holds a window's indices as bits, for many fast queries.
class IndexSet {
  /// Assembles a word beside its memory: neighbours would wait for stores.
  struct Filler {
    uint32_t* words;
    uint32_t word = 0;
    uint32_t at = 0;

    void add(uint16_t index) {
      word = index / 32u == at ? word : 0;
      at = index / 32u;
      word |= uint32_t{1} << (index % 32);
      words[at] = word;
    }
  };

 public:
  IndexSet() : words_(protocol::kWindowIndicesMax / 32) {}
  /// Fills an empty set with ascending indices. From two places at once: each continues where its last word is known.
  void fill(std::span<const uint16_t> indices) {
    size_t middle = indices.size() / 2;
    while (middle > 0 && indices[middle - 1] / 32 == indices[middle] / 32) --middle;
    Filler low{words_.data()};
    Filler high{words_.data()};
    const size_t pairs = std::min(middle, indices.size() - middle);
    for (size_t i = 0; i < pairs; ++i) {
      low.add(indices[i]);
      high.add(indices[middle + i]);
    }
    for (size_t i = pairs; i < middle; ++i) low.add(indices[i]);
    for (size_t i = middle + pairs; i < indices.size(); ++i) high.add(indices[i]);
  }
  /// Of what fill() had: all of the words between the first and the last, which is the faster way.
  void erase(std::span<const uint16_t> indices) {
    if (indices.empty()) return;
    std::fill(words_.begin() + indices.front() / 32, words_.begin() + indices.back() / 32 + 1, 0);
  }
  std::span<const uint32_t> words() const { return words_; }

 private:
  std::vector<uint32_t> words_;
};

/// Empty between calls.
IndexSet& applied_room() {
  thread_local IndexSet room;
  return room;
}

}  // namespace

void take_applied(std::span<const uint32_t> indices, uint32_t begin, std::span<const int32_t> integers,
                  std::span<const uint16_t> applied, std::span<int32_t> taken) {
  IndexSet& set = applied_room();
  set.fill(applied);
  take_where_set(indices, begin, integers, set.words(), taken);
  set.erase(applied);
}

}  // namespace millrace::worker

#include "switch_agg/rack_sums.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <tuple>

#include "kernels/base/check.h"

namespace millrace::switch_agg {

using protocol::DatagramHeader;
using protocol::kFragmentsMax;
using protocol::WindowEntries;
namespace flag = protocol::datagram_flag;

namespace {

/// Both are units of the same slot and fragment, which compete for one cell; or not even that.
bool is_same_place(const DatagramHeader& a, const DatagramHeader& b) {
  return a.slot == b.slot && a.fragment == b.fragment;
}

std::tuple<uint32_t, uint64_t> age_of(const DatagramHeader& unit) { return {unit.epoch, unit.turn}; }

bool is_same_binding(const DatagramHeader& a, const DatagramHeader& b) {
  return a.step == b.step && a.window == b.window && a.exponent == b.exponent;
}

uint64_t magnitude_of(const WindowEntries& entries) {
  int64_t most = 0;
  for (const int32_t value : entries.values) most = std::max(most, std::abs(int64_t{value}));
  return static_cast<uint64_t>(most);
}

constexpr uint64_t kFixed16Most = 32'767;
constexpr uint64_t kIndexCodeSlack =
    16;  ///< what index codes add at most to two bytes an index, or a bit for each of the window

}  // namespace

RackSums::RackSums(const Options& options)
    : options_(options),
      sums_(size_t{options.cells} * options.window_indices, 0),
      bits_(size_t{options.cells} * 2 * (options.window_indices / 64), 0),
      cells_(options.cells),
      indices_(options.window_indices),
      values_(options.window_indices),
      payload_(options.payload_bytes_max) {
  MILLRACE_CHECK(options.cells > 0 && options.window_indices % 64 == 0, options.cells, options.window_indices);
  const size_t words = options.window_indices / 64;
  for (size_t at = 0; at < cells_.size(); ++at) {
    const std::span<uint64_t> bits = std::span(bits_).subspan(at * 2 * words, 2 * words);
    cells_[at].present = bits.first(words);
    cells_[at].sum = WindowSum({.sums = std::span(sums_).subspan(at * options.window_indices, options.window_indices),
                                .present = bits.first(words),
                                .omitted = bits.last(words)});
  }
}

bool RackSums::fits(uint64_t indices, uint64_t magnitude) const {
  const uint64_t value_bytes = magnitude <= kFixed16Most ? 2 : 4;
  return indices * value_bytes + 2 * indices + kIndexCodeSlack <= options_.payload_bytes_max;
}

RackSums::Done RackSums::take(const DatagramHeader& unit, const WindowEntries& entries, uint64_t rack,
                              PartialSink& sink) {
  const uint64_t bit = uint64_t{1} << unit.worker;
  const bool flushes = (unit.flags & flag::kFlush) != 0;
  Cell& cell = cells_[(unit.slot * kFragmentsMax + unit.fragment) % cells_.size()];
  const uint64_t magnitude = magnitude_of(entries);
  Done done;
  if (magnitude > static_cast<uint64_t>(options_.headroom)) return done;  // the shard has a rule for it

  if (cell.have != 0 && is_same_place(cell.key, unit)) {
    if (age_of(unit) < age_of(cell.key)) return done;
    if (age_of(unit) > age_of(cell.key)) {
      send(cell, sink);
      done.evicted = 1;
    }
  }
  if (cell.have == 0) {
    if (flushes || !fits(entries.indices.size(), magnitude)) return done;
    cell.key = unit;
  } else if (!is_same_place(cell.key, unit) || !is_same_binding(cell.key, unit)) {
    return done;
  }
  if ((cell.have & bit) != 0) {
    done.verdict = Verdict::kDuplicate;
  } else {
    uint32_t added = 0;
    for (const uint16_t index : entries.indices) added += (cell.present[index / 64] >> (index % 64) & 1) == 0;
    if (!fits(cell.indices + added, cell.magnitude + magnitude)) {
      send(cell, sink);
      ++done.evicted;
      if (flushes || !fits(entries.indices.size(), magnitude)) return done;
      cell.key = unit;
      added = static_cast<uint32_t>(entries.indices.size());
    }
    add(cell, unit, entries, added, magnitude);
    done.verdict = Verdict::kAdded;
  }
  if ((rack & ~cell.have) == 0 || flushes) {
    send(cell, sink);
    ++(flushes ? done.flushed : done.completed);
  }
  return done;
}

void RackSums::add(Cell& cell, const DatagramHeader& unit, const WindowEntries& entries, uint32_t added,
                   uint64_t magnitude) {
  if (cell.have == 0) {
    cell.last = 0;
    cell.next = protocol::kNoWindow;
    cell.all_fin = true;
    cell.indices = 0;
    cell.magnitude = 0;
  }
  const uint64_t bit = uint64_t{1} << unit.worker;
  cell.have |= bit;
  if ((unit.flags & flag::kLast) != 0) cell.last |= bit;
  cell.next = std::min(cell.next, unit.next);
  cell.all_fin = cell.all_fin && (unit.flags & flag::kFin) != 0;
  cell.indices += added;
  cell.magnitude += magnitude;
  cell.sum.add(entries, options_.headroom);
}

void RackSums::send(Cell& cell, PartialSink& sink) {
  const WindowSum::Taken taken = cell.sum.take(indices_, values_);
  DatagramHeader header;
  header.type = protocol::DatagramType::kPartial;
  header.job = cell.key.job;
  header.epoch = cell.key.epoch;
  header.turn = cell.key.turn;
  header.slot = cell.key.slot;
  header.fragment = cell.key.fragment;
  header.step = cell.key.step;
  header.window = cell.key.window;
  header.exponent = cell.key.exponent;
  header.next = cell.next;
  if (cell.all_fin) header.flags |= flag::kFin;
  if (taken.count == 0) {
    header.flags |= flag::kEmpty;
  } else {
    protocol::WindowCodecs codecs;
    codecs.value =
        cell.magnitude <= kFixed16Most ? protocol::WindowValueCodec::kFixed16 : protocol::WindowValueCodec::kFixed32;
    const std::span<const int32_t> values = std::span(values_).first(taken.count);
    uint32_t sent = 0;
    // Gaps are shorter mostly; two bytes an index always fit.
    for (const auto index : {protocol::WindowIndexCodec::kGap, protocol::WindowIndexCodec::kRaw}) {
      codecs.index = index;
      header.flags &= static_cast<uint8_t>(~flag::kDense);
      sent = encode_window({std::span(indices_).first(taken.count), values}, codecs, options_.window_indices, header,
                           payload_, values_);
      if (sent == taken.count) break;
    }
    MILLRACE_CHECK(sent == taken.count && taken.omitted == 0, sent, taken.count, taken.omitted);
  }
  const protocol::PartialTerms terms{.have = cell.have, .last = cell.last, .hash = 0};
  sink.partial(header, terms, ByteSpan(payload_.data(), header.payload_bytes));
  cell.have = 0;
}

uint32_t RackSums::flush_all(PartialSink& sink) {
  uint32_t sent = 0;
  for (Cell& cell : cells_) {
    if (cell.have == 0) continue;
    send(cell, sink);
    ++sent;
  }
  return sent;
}

void RackSums::clear() {
  for (Cell& cell : cells_) {
    if (cell.have != 0) cell.sum.clear();
    cell.have = 0;
  }
}

}  // namespace millrace::switch_agg

#pragma once

#include <memory>

#include "protocol/table/membership_table.h"

/// A membership table in memory, for simulations: tables made from one shared state see each other's changes.
namespace millrace::testing {

struct MemoryTableState;
std::shared_ptr<MemoryTableState> make_memory_table_state();
std::unique_ptr<protocol::MembershipTable> open_memory_table(std::shared_ptr<MemoryTableState> state);

/// Ends all leases, as those of processes that were stopped for long.
void end_leases(MemoryTableState& state);
/// Replaces the tables' content by an empty table.
void lose_memory_table(MemoryTableState& state);
/// Returns a copy of the tables' content; go_back() replaces later content by it.
std::shared_ptr<const MemoryTableState> copy_of(const MemoryTableState& state);
void go_back(MemoryTableState& state, const MemoryTableState& copy);

}  // namespace millrace::testing

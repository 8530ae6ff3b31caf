#pragma once

#include <memory>

#include "protocol/table/membership_table.h"

/// A membership table in memory, for simulations: tables made from one shared state see each other's changes.
namespace millrace::testing {

struct MemoryTableState;
std::shared_ptr<MemoryTableState> make_memory_table_state();
std::unique_ptr<protocol::MembershipTable> open_memory_table(std::shared_ptr<MemoryTableState> state);

}  // namespace millrace::testing

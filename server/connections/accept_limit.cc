#include "server/connections/accept_limit.h"

#include <atomic>
#include <limits>

namespace millrace::server {
namespace {

// One for the process, as the C library's function is that it limits.
std::atomic<uint64_t> accepted_below{std::numeric_limits<uint64_t>::max()};
std::atomic<uint64_t> accepted_count{0};
std::atomic<uint64_t> over_limit{0};

}  // namespace

void set_accept_limit(uint64_t below) { accepted_below.store(below); }
uint64_t accept_limit() { return accepted_below.load(); }
void count_accepted() { accepted_count.fetch_add(1, std::memory_order_relaxed); }
uint64_t accepted_connections() { return accepted_count.load(std::memory_order_relaxed); }
void count_over_accept_limit() { over_limit.fetch_add(1, std::memory_order_relaxed); }
uint64_t take_over_accept_limit() { return over_limit.exchange(0, std::memory_order_relaxed); }

}  // namespace millrace::server

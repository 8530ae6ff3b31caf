#include "server/access/rate_limit.h"

#include <algorithm>
#include <cmath>

namespace millrace::server {
namespace {

/// Seconds of its rate, as the largest debt by charged messages: the key can send contributions again within this time.
constexpr double kChargedDebtMaxS = 60;

}  // namespace

void RateLimit::fill(Bucket& bucket, TimeNs now) {
  const double seconds = static_cast<double>(std::max<TimeNs>(now - bucket.at, 0)) / static_cast<double>(kNsPerS);
  bucket.bytes = std::min(bucket.bytes_per_s, bucket.bytes + bucket.bytes_per_s * seconds);
  bucket.at = now;
  if (bucket.bytes <= 0) return;
  bucket.in_debt_bytes = 0;
  bucket.charged_bytes = 0;
}

void RateLimit::set(const protocol::PublicKey& key, double bytes_per_s, TimeNs now) {
  const auto [at, is_new] = buckets_.try_emplace(key, Bucket{bytes_per_s, bytes_per_s, now});
  if (is_new) return;
  Bucket& bucket = at->second;
  if (!std::isinf(bucket.bytes_per_s)) fill(bucket, now);
  bucket.bytes_per_s = bytes_per_s;
  bucket.bytes = std::min(bucket.bytes, bytes_per_s);
  bucket.at = now;
}

RateLimit::Bucket* RateLimit::limited(const protocol::PublicKey& key, TimeNs now) {
  const auto at = buckets_.find(key);
  if (at == buckets_.end() || std::isinf(at->second.bytes_per_s)) return nullptr;
  fill(at->second, now);
  return &at->second;
}

/// Counts a message that comes while the key is in debt. Returns the bytes that are a flood.
double RateLimit::count_in_debt(Bucket& bucket, uint64_t bytes) {
  if (bucket.in_debt_bytes <= 0) bucket.debt_bytes = -bucket.bytes;
  bucket.in_debt_bytes += static_cast<double>(bytes);
  return kOverdraft * (bucket.debt_bytes + bucket.bytes_per_s);
}

/// Takes the bytes from the bucket, down to the largest debt of charged messages.
void RateLimit::lengthen_debt(Bucket& bucket, uint64_t bytes) {
  const double least = std::min(bucket.bytes, -kChargedDebtMaxS * bucket.bytes_per_s);
  bucket.bytes = std::max(bucket.bytes - static_cast<double>(bytes), least);
}

RateLimit::Verdict RateLimit::take(const protocol::PublicKey& key, uint64_t bytes, TimeNs now) {
  Bucket* bucket = limited(key, now);
  if (bucket == nullptr) return Verdict::kPasses;
  if (bucket->bytes <= 0) {
    const double flood_bytes = count_in_debt(*bucket, bytes);
    return bucket->in_debt_bytes > flood_bytes ? Verdict::kFloods : Verdict::kOver;
  }
  bucket->bytes -= static_cast<double>(bytes);
  return Verdict::kPasses;
}

RateLimit::Verdict RateLimit::charge(const protocol::PublicKey& key, uint64_t bytes, TimeNs now) {
  Bucket* bucket = limited(key, now);
  if (bucket == nullptr) return Verdict::kPasses;
  bool floods = false;
  if (bucket->bytes <= 0) {
    const double flood_bytes = count_in_debt(*bucket, bytes);
    bucket->charged_bytes += static_cast<double>(bytes);
    floods = bucket->charged_bytes > flood_bytes;
  }
  lengthen_debt(*bucket, bytes);
  return floods ? Verdict::kFloods : Verdict::kPasses;
}

void RateLimit::charge_due(const protocol::PublicKey& key, uint64_t bytes, TimeNs now) {
  if (Bucket* bucket = limited(key, now)) lengthen_debt(*bucket, bytes);
}

}  // namespace millrace::server

#include "server/access/hello_limit.h"

#include <algorithm>

namespace millrace::server {

HelloLimit::Bucket& HelloLimit::bucket_of(const protocol::PublicKey& key, TimeNs now) {
  Bucket& bucket = buckets_.try_emplace(key, Bucket{kBurst, now}).first->second;
  const double seconds = static_cast<double>(std::max<TimeNs>(now - bucket.at, 0)) / static_cast<double>(kNsPerS);
  bucket.hellos = std::min(kBurst, bucket.hellos + kPerSecond * seconds);
  bucket.at = now;
  return bucket;
}

bool HelloLimit::take(const protocol::PublicKey& key, TimeNs now) {
  Bucket& bucket = bucket_of(key, now);
  if (bucket.hellos < 1) return false;
  bucket.hellos -= 1;
  return true;
}

void HelloLimit::count_refusal(const protocol::PublicKey& key, TimeNs now) {
  Bucket& bucket = bucket_of(key, now);
  bucket.hellos = std::max(bucket.hellos - kOfRefused, 0.0);
}

}  // namespace millrace::server

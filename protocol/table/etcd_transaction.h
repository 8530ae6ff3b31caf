#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/bytes.h"
#include "kernels/base/result.h"

/// Requests and answers of etcd's JSON gateway, /v3/kv/txn and others. Internal to protocol/table.
namespace millrace::protocol {

/// Holds a key as etcd answers it.
struct EtcdEntry {
  std::string key;
  ByteBuffer value;
  uint64_t version = 0;       ///< changes of the key since it was created; the first one is 1
  uint64_t mod_revision = 0;  ///< of etcd's whole store, at the key's last change
};

/// Holds the answer to a transaction.
struct EtcdAnswer {
  bool succeeded = false;                      ///< all comparisons held
  std::vector<std::vector<EtcdEntry>> ranges;  ///< one for each operation of the branch that ran; empty for writes
};

/// Returns the first key after all keys that begin with `prefix`. REQUIRES: it ends with a byte below 255.
std::string end_of_prefix(std::string_view prefix);

/// Builds one atomic transaction: if all comparisons hold, the operations of then() run, else those of otherwise().
class EtcdTransaction {
 public:
  /// Operations in the order in which they run. No key is written twice.
  class Operations {
   public:
    Operations& put(std::string_view key, ByteSpan value);
    Operations& put(std::string_view key, std::string_view value);
    /// Writes a key that etcd removes when the lease ends.
    Operations& put_leased(std::string_view key, std::string_view value, int64_t lease);
    Operations& get(std::string_view key);
    /// Reads all keys that begin with `prefix`, in their order.
    Operations& get_all(std::string_view prefix);
    Operations& remove(std::string_view key);
    Operations& remove_all(std::string_view prefix) { return remove_range(prefix, end_of_prefix(prefix)); }
    /// Removes the keys from `from` until before `to`.
    Operations& remove_range(std::string_view from, std::string_view to);
    const std::string& json() const { return json_; }

   private:
    Operations& add(std::string one);
    std::string json_;
  };

  /// The key has that version; 0: it does not exist.
  EtcdTransaction& if_version(std::string_view key, uint64_t version);
  EtcdTransaction& if_mod_revision(std::string_view key, uint64_t revision);
  EtcdTransaction& if_value(std::string_view key, std::string_view value);
  /// No key begins with `prefix`.
  EtcdTransaction& if_none(std::string_view prefix);
  Operations& then() { return then_; }
  Operations& otherwise() { return otherwise_; }

  std::string json() const;

 private:
  EtcdTransaction& compare(std::string one);
  std::string comparisons_;
  Operations then_;
  Operations otherwise_;
};

/// Reads the answer to a transaction. Errors  malformed: not such an answer.
Result<EtcdAnswer> parse_etcd_answer(std::string_view text);

/// Returns a JSON object of two texts.
std::string json_of_texts(std::string_view name, std::string_view value, std::string_view name2,
                          std::string_view value2);

/// Returns a JSON object of one number.
std::string json_of_number(std::string_view name, int64_t value);

/// Returns the request for a stream of one key's changes (/v3/watch).
std::string json_of_watch(std::string_view key);
/// Returns whether a line of that stream is a message of a watch that continues. etcd refuses a watch, or ends it, by a
/// message with `canceled`. Its HTTP status is 200, and the stream stays open.
bool is_watch_message(std::string_view line);

/// Returns a text of a JSON object; empty: it has none of that name.
std::string text_in_json(std::string_view json, const char* name);
/// Holds the refusal in an answer of etcd's gateway.
struct GatewayError {
  int64_t code = 0;  ///< of gRPC
  std::string sentence;
};
/// Returns the refusal in a JSON object. Gateways of etcd 3.4 and 3.5 write {"error": TEXT, "code"}, and those of 3.6
/// {"message", "code"}. A stream's answer has {"error": {"message", "grpc_code" or "code"}}. Empty: it is none of them.
std::optional<GatewayError> gateway_error_in(std::string_view json);
/// Returns a number of a JSON object, or of the object `result` in it (a stream's); 0: it has none of that name.
int64_t number_in_json(std::string_view json, const char* name);

}  // namespace millrace::protocol

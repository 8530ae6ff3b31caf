#pragma once

#include <string>

#include "kernels/base/result.h"
#include "protocol/keys/key.h"

namespace millrace::protocol {

/// Reads a file of a secret key. Its owner and group may read it (orchestrators hand out secrets as 0440 and 0640).
///
/// Errors  io. invalid_argument: not a file; another text than a secret key; all users may read or write it, or its
///         group may write it. The sentence names chmod.
Result<KeyPair> read_secret_key(const std::string& path);

/// Reads a file of a public key.
///
/// Errors  io. invalid_argument: not a file; another text than a public key (a secret key has a sentence of its own);
///         all users may write it.
Result<PublicKey> read_public_key(const std::string& path);
/// Reads a file of an open folder in the same way, with the key's end; `path` names it in sentences.
Result<DatedKey> read_public_key_in(int folder, const std::string& name, const std::string& path);

/// The files of one pair.
struct KeyFiles {
  std::string secret_path;  ///< FOLDER/NAME.key, mode 0600
  std::string public_path;  ///< FOLDER/NAME.pub, mode 0644
};

/// Draws a pair and writes its two files; that of the public key has the end. The folder is made with mode 0700 where
/// it is missing; its parent must exist.
///
/// Errors  invalid_argument: the name. io; also where one of the files exists: then nothing is changed.
Result<KeyFiles> write_new_keys(const std::string& folder, const std::string& name, KeyEnd end = {});

}  // namespace millrace::protocol

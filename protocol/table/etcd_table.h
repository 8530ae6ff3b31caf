#pragma once

#include "protocol/table/etcd_address.h"
#include "protocol/table/membership_table.h"

namespace millrace::protocol {

/// Opens the table under the prefix in etcd; makes it if it is absent.
///
/// Keys     all below options.prefix + "/".
///          format: the version of these keys. changes: every change writes it. shard_count: every start writes it.
///          shard/NNNN: the addresses. The key's version is the incarnation of the last start.
///          lease/NNNN: exists while that start lives. leaving/NNNN: exists in its place once that start has granted a
///          drain. spare/TAG: exists while a spare waits. drain/NNNN: an operator wants that start to end.
///          cluster_notes.h has the values of these four. last_job: the last job's number.
///          name/NAME: the number of the open job of that name.
///          job/N: the tag of the last swap, and the record. The key's version is the epoch. spec/N: the specification.
///          done/N: the record, in place of these three once the job is finished.
/// Errors   timeout: no endpoint answers within kTableOpenWaitMs; io: etcd refuses; unsupported: another format.
Result<std::unique_ptr<MembershipTable>> open_etcd_table(const EtcdOptions& options);

}  // namespace millrace::protocol

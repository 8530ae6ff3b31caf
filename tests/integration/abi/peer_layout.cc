// Prints the layout of every public type of the library of peers, and every number of its enums, as layout.cc does.

#include <millrace/peer.h>

#include "tests/integration/abi/print_layout.h"

using millrace::testing::print_type;

void print_enums() {
  print_type<millrace::peers::Progress>("peers::Progress");
  MILLRACE_NUMBER(peers::Progress, kByCaller);
  MILLRACE_NUMBER(peers::Progress, kByThread);
  print_type<millrace::peers::Boundaries>("peers::Boundaries");
  MILLRACE_NUMBER(peers::Boundaries, kAveraged);
  MILLRACE_NUMBER(peers::Boundaries, kPooled);
  MILLRACE_NUMBER(peers::Boundaries, kEqual);
}

void print_opaque() {
  print_type<millrace::peers::Algorithm>("peers::Algorithm");
  print_type<millrace::peers::Allreduce>("peers::Allreduce");
  print_type<millrace::peers::Communicator>("peers::Communicator");
  print_type<millrace::peers::Group>("peers::Group");
  print_type<millrace::peers::Pending>("peers::Pending");
  print_type<millrace::peers::PendingGather>("peers::PendingGather");
}

void print_plain() {
  MILLRACE_TYPE(SparseEntries, MILLRACE_MEMBER(indices); MILLRACE_MEMBER(values))
  MILLRACE_TYPE(EntriesView, MILLRACE_MEMBER(dimension); MILLRACE_MEMBER(dense); MILLRACE_MEMBER(indices);
                MILLRACE_MEMBER(values))
  MILLRACE_TYPE(peers::MpiOptions, MILLRACE_MEMBER(shared_bytes_max); MILLRACE_MEMBER(fortran_handle))
  MILLRACE_TYPE(peers::TcpOptions, MILLRACE_MEMBER(rank); MILLRACE_MEMBER(addresses); MILLRACE_MEMBER(listen);
                MILLRACE_MEMBER(exchange); MILLRACE_MEMBER(group); MILLRACE_MEMBER(key_file); MILLRACE_MEMBER(insecure);
                MILLRACE_MEMBER(connect_max); MILLRACE_MEMBER(give_up); MILLRACE_MEMBER(body_bytes_max))
  MILLRACE_TYPE(peers::GroupOptions, MILLRACE_MEMBER(silence_max); MILLRACE_MEMBER(start_max);
                MILLRACE_MEMBER(early_bytes_max); MILLRACE_MEMBER(progress))
  MILLRACE_TYPE(peers::GroupFailure, MILLRACE_MEMBER(code); MILLRACE_MEMBER(sentence); MILLRACE_MEMBER(rank))
  MILLRACE_TYPE(peers::Traffic, MILLRACE_MEMBER(messages_sent); MILLRACE_MEMBER(bytes_sent);
                MILLRACE_MEMBER(bytes_received); MILLRACE_MEMBER(messages_unexpected))
  MILLRACE_TYPE(peers::Gathered, MILLRACE_MEMBER(of_rank); MILLRACE_MEMBER(owner))
  MILLRACE_TYPE(peers::Oktopk, MILLRACE_MEMBER(boundaries_period); MILLRACE_MEMBER(thresholds_period);
                MILLRACE_MEMBER(boundaries); MILLRACE_MEMBER(messages_in_flight); MILLRACE_MEMBER(balance_ratio))
  MILLRACE_TYPE(peers::AlgorithmInfo, MILLRACE_MEMBER(number); MILLRACE_MEMBER(name); MILLRACE_MEMBER(source);
                MILLRACE_MEMBER(takes_k); MILLRACE_MEMBER(selects))
  MILLRACE_TYPE(peers::AllreduceOptions, MILLRACE_MEMBER(dimension); MILLRACE_MEMBER(algorithm); MILLRACE_MEMBER(codec);
                MILLRACE_MEMBER(seed))
  MILLRACE_TYPE(peers::Reduced, MILLRACE_MEMBER(sum); MILLRACE_MEMBER(returned); MILLRACE_MEMBER(contributed);
                MILLRACE_MEMBER(added); MILLRACE_MEMBER(owner))
}

int main() {
  print_opaque();
  print_plain();
  print_enums();
  return 0;
}

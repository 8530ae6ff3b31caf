#pragma once

#include "protocol/job/job_spec.h"

/// Whether a number that came as an enum of the job specification is one that this build knows. Internal to protocol/.
namespace millrace::protocol {

bool known(Mode value);
bool known(Combine value);
bool known(Reselect value);
bool known(CodecError value);
bool known(NonFinite value);
bool known(Momentum value);
bool known(InitialWeights value);
bool known(Path value);
bool known(WindowIndexCodec value);
bool known(WindowValueCodec value);
bool known(Optimizer value);
bool known(StoreBegin value);
bool known(ValueType value);
bool known(Selection value);
bool known(WarmUp value);
bool known(IndexCodecId value);
bool known(ValueCodecId value);

}  // namespace millrace::protocol

#include "protocol/job/known_enums.h"

namespace millrace::protocol {

// Each switch names every enumerator, so that the compiler asks for the next one. Codecs, selections and optimizers are
// in their registries.
bool known(Mode value) {
  switch (value) {
    case Mode::kSynchronous:
    case Mode::kBoundedStaleness:
    case Mode::kAsynchronous:
    case Mode::kPartial: return true;
  }
  return false;
}

bool known(Combine value) {
  switch (value) {
    case Combine::kSum:
    case Combine::kMean:
    case Combine::kWeightedMean: return true;
  }
  return false;
}

bool known(Reselect value) {
  switch (value) {
    case Reselect::kNone:
    case Reselect::kTopK: return true;
  }
  return false;
}

bool known(CodecError value) {
  switch (value) {
    case CodecError::kRetain:
    case CodecError::kDrop: return true;
  }
  return false;
}

bool known(NonFinite value) {
  switch (value) {
    case NonFinite::kRefuse:
    case NonFinite::kDropAndCount: return true;
  }
  return false;
}

bool known(Momentum value) {
  switch (value) {
    case Momentum::kNone:
    case Momentum::kCorrection:
    case Momentum::kNesterov:
    case Momentum::kNesterovPrinted: return true;
  }
  return false;
}

bool known(InitialWeights value) {
  switch (value) {
    case InitialWeights::kOwn:
    case InitialWeights::kFirst: return true;
  }
  return false;
}

bool known(Path value) {
  switch (value) {
    case Path::kServer:
    case Path::kSwitch: return true;
  }
  return false;
}

bool known(WindowIndexCodec value) {
  switch (value) {
    case WindowIndexCodec::kRaw:
    case WindowIndexCodec::kGap:
    case WindowIndexCodec::kBitmap:
    case WindowIndexCodec::kBloom:
    case WindowIndexCodec::kDense: return true;
  }
  return false;
}

bool known(WindowValueCodec value) {
  switch (value) {
    case WindowValueCodec::kFixed16:
    case WindowValueCodec::kFixed32:
    case WindowValueCodec::kQsgd8:
    case WindowValueCodec::kQsgd4:
    case WindowValueCodec::kNone: return true;
  }
  return false;
}

bool known(Optimizer value) { return find_optimizer(value) != nullptr; }

bool known(StoreBegin value) {
  switch (value) {
    case StoreBegin::kZeros:
    case StoreBegin::kWorker:
    case StoreBegin::kSaved: return true;
  }
  return false;
}

bool known(ValueType value) {
  switch (value) {
    case ValueType::kF32:
    case ValueType::kF64: return true;
  }
  return false;
}

bool known(Selection value) { return find_selection(value) != nullptr; }

bool known(WarmUp value) {
  switch (value) {
    case WarmUp::kNone:
    case WarmUp::kDense:
    case WarmUp::kExponential: return true;
  }
  return false;
}

bool known(IndexCodecId value) { return value == IndexCodecId::kNone || find_index_codec(value) != nullptr; }

bool known(ValueCodecId value) { return find_value_codec(value) != nullptr; }

}  // namespace millrace::protocol

// Stands for a CUDA backend that does not fit: it refuses, and says that it is of the version that it was built as.

#include "backend/cuda/library.hpp"

extern "C" const moebus::backend::CudaLibrary* moebus_cuda_open(const char* /*version*/,
                                                                std::uint64_t /*mark*/,
                                                                const char** own_version) {
  *own_version = OWN_VERSION;
  return nullptr;
}

#include "backend/cuda/current.hpp"

#include <fmt/format.h>

#include "backend/cuda/cuda_check.hpp"
#include "moebus/error.hpp"

namespace moebus::backend::cuda {

PrimaryContext::PrimaryContext(int ordinal) : ordinal_(ordinal) {
  const int num_devices = usable_driver().num_devices;
  if (ordinal < 0 || ordinal >= num_devices) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("device is {}; devices of this process are 0 to {}", ordinal, num_devices - 1));
  }
  MOEBUS_DRIVER_CALL(cuDeviceGet(&device_, ordinal));
  MOEBUS_DRIVER_CALL(cuDevicePrimaryCtxRetain(&context_, device_));
}

PrimaryContext::~PrimaryContext() {
  log_failure(driver().cuDevicePrimaryCtxRelease(device_), "cuDevicePrimaryCtxRelease");
}

Current::Current(const PrimaryContext& context) {
  MOEBUS_DRIVER_CALL(cuCtxPushCurrent(context.get()));
  const cudaError_t result = cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  if (result == cudaSuccess) return;
  CUcontext popped = nullptr;
  log_failure(driver().cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
  check_runtime(result, "cudaThreadExchangeStreamCaptureMode");
}

Current::~Current() {
  log_failure(cudaThreadExchangeStreamCaptureMode(&capture_mode_), "cudaThreadExchangeStreamCaptureMode");
  CUcontext popped = nullptr;
  log_failure(driver().cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
}

}  // namespace moebus::backend::cuda

#include "backend/cuda/cuda_check.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "base/log.hpp"
#include "moebus/error.hpp"

namespace moebus::backend::cuda {
namespace {

std::string_view call_name(std::string_view call) { return call.substr(0, call.find('(')); }

std::string error_text(cudaError_t result) {
  return fmt::format("{} ({} {})", cudaGetErrorString(result), cudaGetErrorName(result), static_cast<int>(result));
}

void log_text(std::string_view call, const std::string& text) noexcept {
  try {
    base::log().error("{}: {}", call_name(call), text);
  } catch (const std::exception&) {
    return;  // nothing is left to say it with
  }
}

}  // namespace

std::string error_text(CUresult result) {
  const char* text = nullptr;
  const char* name = nullptr;
  if (driver().cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  if (driver().cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "error";
  return fmt::format("{} ({} {})", text, name, static_cast<int>(result));
}

void check_runtime(cudaError_t result, std::string_view call, std::source_location location) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  const ErrorCode code =
      result == cudaErrorMemoryAllocation ? ErrorCode::resource_exhausted : ErrorCode::device_failure;
  throw Error(code, fmt::format("{}: {}", call_name(call), error_text(result)), -1, location);
}

void check_driver(CUresult result, std::string_view call, std::source_location location) {
  if (result == CUDA_SUCCESS) return;
  const ErrorCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::resource_exhausted : ErrorCode::device_failure;
  throw Error(code, fmt::format("{}: {}", call_name(call), error_text(result)), -1, location);
}

void log_failure(cudaError_t result, std::string_view call) noexcept {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  log_text(call, error_text(result));
}

void log_failure(CUresult result, std::string_view call) noexcept {
  if (result != CUDA_SUCCESS) log_text(call, error_text(result));
}

}  // namespace moebus::backend::cuda

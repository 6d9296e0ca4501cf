#include "api/cuda_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <exception>
#include <filesystem>

#include "base/env.hpp"
#include "moebus/error.hpp"
#include "moebus/version.hpp"

namespace moebus::api {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "MOEBUS_CUDA_LIBRARY";

std::string last_loader_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "the loader gives no reason";
}

/// The folders to look in: that of the library or program which this code is part of, then the running program's.
std::vector<fs::path> folders() {
  std::vector<fs::path> result;
  std::error_code error;
  Dl_info own{};
  if (::dladdr(reinterpret_cast<const void*>(&load_cuda_library), &own) != 0 && own.dli_fname != nullptr) {
    const fs::path file = fs::canonical(own.dli_fname, error);
    if (!error) result.push_back(file.parent_path());
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) result.push_back(program.parent_path());
  return result;
}

}  // namespace

std::string find_cuda_library() {
  if (auto path = base::env(kVariable)) return *path;
  for (const fs::path& folder : folders()) {
    const fs::path file = folder / MOEBUS_CUDA_SONAME;
    std::error_code error;
    if (fs::exists(file, error)) return file.string();
  }
  return {};
}

LoadedCuda load_cuda_library(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {nullptr, fmt::format("{} cannot be loaded: {}", path, last_loader_error())};
  const auto open = reinterpret_cast<backend::CudaLibraryEntry>(::dlsym(handle, backend::kCudaLibraryEntry));
  if (open == nullptr) {
    ::dlclose(handle);
    return {nullptr, fmt::format("{} is no CUDA backend of moebus: it has no {}", path, backend::kCudaLibraryEntry)};
  }
  const char* own_version = "";
  const std::string version{moebus::version()};
  const backend::CudaLibrary* library = open(version.c_str(), backend::cuda_interface_mark(), &own_version);
  if (library != nullptr) return {library, {}};
  std::string reason =
      version == own_version
          ? fmt::format("{} is of another build of version {}; install both libraries from one build", path, version)
          : fmt::format("{} is of version {} and libmoebus of {}; install both from one", path, own_version, version);
  ::dlclose(handle);
  return {nullptr, std::move(reason)};
}

const LoadedCuda& cuda_library() {
  static const LoadedCuda kLoaded = [] {
    const std::string path = find_cuda_library();
    if (!path.empty()) return load_cuda_library(path);
    return LoadedCuda{
        nullptr, fmt::format("{} is not installed beside libmoebus (or named by {})", MOEBUS_CUDA_SONAME, kVariable)};
  }();
  return kLoaded;
}

CudaDevices cuda_devices() noexcept {
  CudaDevices result;
  try {
    const LoadedCuda& loaded = cuda_library();
    result.reason = loaded.reason;
    if (loaded.library == nullptr) return result;
    result.toolkit_version = loaded.library->toolkit_version;
    result.devices = loaded.library->list_devices();
  } catch (const std::exception& error) {
    result.reason = error.what();
  }
  return result;
}

std::unique_ptr<backend::Device> open_cuda_device(int ordinal) {
  const LoadedCuda& loaded = cuda_library();
  if (loaded.library == nullptr) throw Error(ErrorCode::unsupported, "no CUDA device: " + loaded.reason);
  return loaded.library->make_device(ordinal);
}

}  // namespace moebus::api

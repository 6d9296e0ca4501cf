#include "tests/cuda/gpu_probe.hpp"

#include "backend/cuda/driver.hpp"
#include "tests/support/ranks.hpp"

namespace moebus::tests {
namespace {

std::string ask() {
  constexpr const char* kMark = "reason: ";
  const auto outcomes = run_as_processes(1, [](int) {
    const std::string& reason = backend::cuda::driver().reason;
    if (!reason.empty()) throw std::runtime_error(kMark + reason);
  });
  if (outcomes[0].is_ok()) return {};
  const std::size_t at = outcomes[0].message.find(kMark);
  if (at == std::string::npos) {
    ADD_FAILURE() << "the probe died: signal " << outcomes[0].signal << ", " << outcomes[0].message;
    return "the probe died";
  }
  return outcomes[0].message.substr(at + std::string(kMark).size());
}

}  // namespace

const std::string& why_no_gpu() {
  static const std::string kReason = ask();
  return kReason;
}

}  // namespace moebus::tests

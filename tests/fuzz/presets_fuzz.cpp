// A file of model presets: what is read keeps its limits; all else is refused with a message of bounded length.

#include "moebus/error.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "workload/presets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  using namespace moebus;
  static const fuzz::InputFile file;
  fuzz::FuzzInput input(bytes, num_bytes);
  file.hold(input.rest());
  try {
    for (const workload::ModelPreset& preset : workload::load_presets(file.path())) {
      MOEBUS_ASSERT(!preset.name.empty() && preset.name.size() <= 100 && preset.title.size() <= 100);
      MOEBUS_ASSERT(preset.hidden >= 1 && preset.num_experts >= 1 && preset.num_topk >= 1);
      MOEBUS_ASSERT(preset.num_topk <= preset.num_experts && preset.num_kept_groups <= preset.num_groups);
    }
  } catch (const Error& error) {
    MOEBUS_ASSERT(error.code() == ErrorCode::invalid_argument);
    MOEBUS_ASSERT(std::string_view(error.what()).size() < 1024);
  }
  return 0;
}

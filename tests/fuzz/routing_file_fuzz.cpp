// A file of recorded routing: what is read fits the shape; all else is refused.

#include "moebus/error.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "workload/routing.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  using namespace moebus;
  static const fuzz::InputFile file;
  fuzz::FuzzInput input(bytes, num_bytes);
  workload::RoutingShape shape;
  shape.num_topk = input.pick(1, 4);
  shape.num_experts = input.pick(1, 16);
  file.hold(input.rest());
  try {
    const auto ids = workload::read_routing_file(file.path(), shape);
    MOEBUS_ASSERT(!ids.empty() && ids.size() % static_cast<std::size_t>(shape.num_topk) == 0);
    for (const std::int64_t id : ids) MOEBUS_ASSERT(id >= -1 && id < shape.num_experts);
  } catch (const Error& error) {
    MOEBUS_ASSERT(error.code() == ErrorCode::invalid_argument);
  }
  return 0;
}

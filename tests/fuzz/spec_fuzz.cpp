// Short descriptions that users and tests give: MOEBUS_FAULT, MOEBUS_TEST_TRANSPORT, --routing.

#include "engine/faults.hpp"
#include "moebus/error.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "transport/unruly/connect.hpp"
#include "workload/routing.hpp"

namespace {

using moebus::Error;
using moebus::ErrorCode;

template <class Parse>
void expect_parsed_or_refused(const Parse& parse) {
  try {
    parse();
  } catch (const Error& error) {
    MOEBUS_ASSERT(error.code() == ErrorCode::invalid_argument);
  }
}

void check_routing(const std::string& text) {
  const moebus::workload::RoutingSpec spec = moebus::workload::parse_routing(text);
  MOEBUS_ASSERT(spec.zipf_exponent >= 0 && spec.zipf_exponent <= 10);
  MOEBUS_ASSERT(spec.hot_factor >= 0 && spec.hot_factor <= 1000);
  MOEBUS_ASSERT(spec.masked_fraction >= 0 && spec.masked_fraction <= 1);
  MOEBUS_ASSERT(moebus::workload::parse_routing(spec.text()).text() == spec.text());
  if (spec.kind == moebus::workload::RoutingKind::file) return;
  const moebus::workload::RoutingGenerator generator(spec, {12, 3, 4});
  for (const std::int64_t expert : generator.make(1, 5, 7).topk_idx) MOEBUS_ASSERT(expert >= -1 && expert < 12);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  moebus::fuzz::FuzzInput input(bytes, std::min<std::size_t>(num_bytes, 256));
  const std::string text(input.rest());
  expect_parsed_or_refused([&] { const moebus::engine::Faults faults(text, 1); });
  expect_parsed_or_refused([&] { static_cast<void>(moebus::transport::parse_unruly(text)); });
  expect_parsed_or_refused([&] { check_routing(text); });
  return 0;
}

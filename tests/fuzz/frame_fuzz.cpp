// Frames of a store's sockets and every payload in them, as they come from whoever connects and from members.

#include "base/math.hpp"
#include "moebus/types.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "transport/store_checks.hpp"
#include "transport/stream_frame.hpp"

namespace moebus::transport {
namespace {

void check_header(fuzz::FuzzInput& input) {
  FrameHeader header{};
  const std::string_view told = input.text(header.size());
  std::copy(told.begin(), told.end(), header.begin());
  const ParsedHeader parsed = parse_frame_header(header, kMaxGreetingBytes);
  if (!parsed.error.empty()) return;
  MOEBUS_ASSERT(parsed.payload_bytes <= kMaxGreetingBytes);
  MOEBUS_ASSERT(make_frame_header(parsed.type, parsed.payload_bytes) == header);
}

void check_payloads(std::string_view payload, int num_ranks) {
  // What is understood is written again as it was.
  if (const auto hello = parse_hello(payload)) MOEBUS_ASSERT(to_payload(*hello) == payload);
  if (const auto failure = parse_failure(payload)) {
    MOEBUS_ASSERT(to_payload(*failure) == payload);
    MOEBUS_ASSERT(failure->origin_rank >= -1 && failure->origin_rank < kMaxRanks);
  }
  if (const auto deposit = parse_deposit(payload)) MOEBUS_ASSERT(deposit->step.size() <= kMaxStepBytes);
  if (const auto values = parse_values(payload, num_ranks)) {
    MOEBUS_ASSERT(values->size() == base::idx(num_ranks) && to_payload(*values) == payload);
  }
  const std::vector<int> ranks = parse_ranks(payload);
  MOEBUS_ASSERT(ranks.size() <= std::size_t{kMaxRanks});
  for (const int rank : ranks) MOEBUS_ASSERT(rank >= 0 && rank < kMaxRanks);
  for (const char c : printable(payload)) MOEBUS_ASSERT(c >= ' ' && c <= '~');
}

}  // namespace
}  // namespace moebus::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  moebus::fuzz::FuzzInput input(bytes, num_bytes);
  const int num_ranks = input.pick(1, 8);
  moebus::transport::check_header(input);
  moebus::transport::check_payloads(input.rest(), num_ranks);
  return 0;
}

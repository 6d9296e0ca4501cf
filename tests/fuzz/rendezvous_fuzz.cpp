// Addresses as users give them, and files where rank 0 should have left one.

#include "moebus/error.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "transport/rendezvous.hpp"
#include "transport/rendezvous_file.hpp"

namespace moebus::transport {
namespace {

void check_address(std::string_view uri) {
  try {
    const RendezvousAddress address = parse_rendezvous(uri);
    MOEBUS_ASSERT(!address.name.empty());
    MOEBUS_ASSERT(address.kind == RendezvousKind::tcp ? address.port >= 1 && address.port <= 65535 : address.port == 0);
    const bool is_name = address.kind == RendezvousKind::inproc || address.kind == RendezvousKind::local;
    if (is_name) MOEBUS_ASSERT(address.name.size() <= 64 && address.name.find('/') == std::string::npos);
    if (address.kind == RendezvousKind::file) MOEBUS_ASSERT(address.name[0] == '/');
  } catch (const Error& error) {
    MOEBUS_ASSERT(error.code() == ErrorCode::invalid_argument);
  }
}

void check_file(std::string_view content) {
  static const fuzz::InputFile file;
  file.hold(content);
  try {
    const auto name = read_rendezvous_file(file.path());
    MOEBUS_ASSERT(name && !name->empty() && name->size() < 256);
  } catch (const Error& error) {
    MOEBUS_ASSERT(error.code() == ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace moebus::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  moebus::fuzz::FuzzInput input(bytes, num_bytes);
  const std::string_view text = input.rest();
  moebus::transport::check_address(text);
  moebus::transport::check_file(text);
  return 0;
}

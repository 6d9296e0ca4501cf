// Token proof: each side shows that it knows the group's token without sending it (HMAC over both sides' nonces).
// Room: transport · host.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace moebus::transport {

using Nonce = std::array<char, 32>;
using Proof = std::array<char, 32>;

/// Who proves; part of what is signed, so that a proof cannot be sent back to its maker.
enum class Prover : std::uint8_t { client, hub };

/// What both sides sign: everything that was said before.
struct ProofContext {
  std::string_view hello;  ///< the client's first message as sent
  Nonce client_nonce{};
  Nonce hub_nonce{};
};

/// Returns 32 bytes that nobody can guess.
Nonce random_nonce();

/// Returns `num_bytes` random bytes as hexadecimal digits, for names.
std::string random_name(std::size_t num_bytes);

/// Returns the proof for `token`, which may be empty (then anybody can make it).
Proof make_proof(std::string_view token, Prover prover, const ProofContext& context);

/// Compares in a time that does not depend on the content.
bool is_same_secret(std::string_view a, std::string_view b) noexcept;

/// Views a nonce or a proof as bytes.
[[nodiscard]] inline std::string_view as_bytes(const std::array<char, 32>& value) noexcept {
  return {value.data(), value.size()};
}

}  // namespace moebus::transport

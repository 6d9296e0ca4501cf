#include "transport/token_proof.hpp"

#include <sodium.h>

#include "moebus/error.hpp"

namespace moebus::transport {
namespace {

static_assert(sizeof(Proof) == crypto_auth_BYTES);
static_assert(sizeof(Nonce) >= crypto_auth_KEYBYTES);

void start_sodium() {
  if (sodium_init() < 0)
    throw Error(ErrorCode::internal, "libsodium did not start: the system gives no random numbers");
}

// libsodium takes bytes as unsigned char; the objects behind are plain chars.
const unsigned char* bytes_of(std::string_view text) noexcept {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Nonce random_nonce() {
  start_sodium();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::string random_name(std::size_t num_bytes) {
  start_sodium();
  std::string raw(num_bytes, '\0');
  randombytes_buf(raw.data(), raw.size());
  std::string text(2 * num_bytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes_of(raw), raw.size());
  text.pop_back();
  return text;
}

Proof make_proof(std::string_view token, Prover prover, const ProofContext& context) {
  start_sodium();
  std::array<unsigned char, crypto_auth_KEYBYTES> key;
  crypto_generichash(key.data(), key.size(), bytes_of(token), token.size(), nullptr, 0);
  std::string said = prover == Prover::client ? "moebus store, client" : "moebus store, hub   ";
  said += as_bytes(context.client_nonce);
  said += as_bytes(context.hub_nonce);
  said += context.hello;  // last: the only part whose length varies
  Proof proof;
  std::array<unsigned char, crypto_auth_BYTES> mac;
  crypto_auth(mac.data(), bytes_of(said), said.size(), key.data());
  for (std::size_t i = 0; i < mac.size(); ++i) proof[i] = static_cast<char>(mac[i]);
  sodium_memzero(key.data(), key.size());
  return proof;
}

bool is_same_secret(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace moebus::transport

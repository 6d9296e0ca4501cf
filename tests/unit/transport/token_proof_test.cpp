#include "transport/token_proof.hpp"

#include <gtest/gtest.h>

namespace moebus::transport {
namespace {

TEST(TokenProof, IsTheSameForTheSameTokenAndContext) {
  const ProofContext context{"hello", random_nonce(), random_nonce()};
  EXPECT_EQ(make_proof("secret", Prover::client, context), make_proof("secret", Prover::client, context));
}

TEST(TokenProof, ChangesWithEverythingThatItSigns) {
  const ProofContext context{"hello", random_nonce(), random_nonce()};
  const Proof proof = make_proof("secret", Prover::client, context);
  EXPECT_NE(proof, make_proof("secreT", Prover::client, context));
  EXPECT_NE(proof, make_proof("", Prover::client, context));
  EXPECT_NE(proof, make_proof("secret", Prover::hub, context));
  EXPECT_NE(proof, make_proof("secret", Prover::client, {"hellO", context.client_nonce, context.hub_nonce}));
  EXPECT_NE(proof, make_proof("secret", Prover::client, {"hello", random_nonce(), context.hub_nonce}));
  EXPECT_NE(proof, make_proof("secret", Prover::client, {"hello", context.client_nonce, random_nonce()}));
}

TEST(TokenProof, TellsSecretsApartWhateverTheirLength) {
  EXPECT_TRUE(is_same_secret("abc", "abc"));
  EXPECT_FALSE(is_same_secret("abc", "abd"));
  EXPECT_FALSE(is_same_secret("abc", "ab"));
  EXPECT_TRUE(is_same_secret("", ""));
}

TEST(RandomName, HasTwoDigitsPerByteAndNeverRepeats) {
  EXPECT_EQ(random_name(16).size(), 32U);
  EXPECT_NE(random_name(16), random_name(16));
}

}  // namespace
}  // namespace moebus::transport

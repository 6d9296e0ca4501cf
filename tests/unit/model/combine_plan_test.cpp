#include "model/combine_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "combine_run.hpp"

namespace moebus::model {
namespace {

using base::idx;
using cases::Case;
using cases::Group;
using cases::Layouts;
using cases::Terms;
using cases::WireRow;

constexpr unsigned kNumSeeds = 120;
constexpr std::int64_t kRowBytes = 16;

/// Addresses to tell rows of a result apart; what lies there is never read.
RowsView results_of(int rank) {
  static const std::vector<std::byte> memory(std::size_t{1} << 20);
  return {memory.data() + rank * 65536, kRowBytes};
}

/// A group of one node with the home slots of all ranks, filled by the owners' tails.
struct Exchange : Group {
  explicit Exchange(const Case& c_in) : Group(c_in), tokens(c_in.config.max_tokens_per_rank) {
    for (int home = 0; home < c.num_ranks; ++home) {
      memory.emplace_back(idx(shape().combine_slots_per_token * tokens) * shape().combine_row.stride_bytes,
                          std::byte{0xEE});
    }
    for (int owner = 0; owner < c.num_ranks; ++owner) {
      for (int home = 0; home < c.num_ranks; ++home) {
        const RowRange rows = rows_from(owner, home);
        const std::vector<std::int32_t> at = slots_for(owner, home);
        write_tails(shape(owner), receive(owner), rows, lane(owner), memory[idx(home)].data(), at);
      }
    }
  }

  HomeSlots slots_of(int home) { return {memory[idx(home)].data(), tokens, 0}; }

  /// Where the rows of `owner` for `home` go, by their numbers.
  std::vector<std::int32_t> slots_for(int owner, int home) {
    const RowRange rows = rows_from(owner, home);
    std::vector<std::int32_t> at(idx((rows.last - rows.first) * c.config.num_topk));
    std::vector<std::uint8_t> has_payload(at.size());
    at.resize(list_owner_slots(shape(owner), receive(owner), rows, slots_of(home), at, has_payload));
    return at;
  }

  std::byte* slot(int home, std::int64_t slot_idx, int token) {
    const auto stride = static_cast<std::int64_t>(shape().combine_row.stride_bytes);
    return memory[idx(home)].data() + (slot_idx * tokens + token) * stride;
  }

  std::int64_t tokens = 0;
  std::vector<std::vector<std::byte>> memory;  // [home][slot, token]
};

class CombinePlans : public testing::TestWithParam<Layouts> {
 protected:
  template <class Check>
  void for_each_case(Check check) {
    for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
      Exchange exchange(cases::combine_case(seed, GetParam()));
      SCOPED_TRACE(exchange.c.text());
      ASSERT_NO_FATAL_FAILURE(check(exchange));
    }
  }

  static bool is_per_expert() { return GetParam().rows == CombineRows::per_expert; }
};

using cases::kExpertMajor;
using cases::kExpertPadded;
using cases::kMajorPerExpert;
using cases::kPaddedPerExpert;
using cases::kRankMajor;

std::string name_of(const testing::TestParamInfo<Layouts>& layouts) { return layouts.param.name; }

class OwnerSums : public CombinePlans {};

class OwnerSlots : public CombinePlans {};

class OwnerMoves : public CombinePlans {};

class RankSums : public CombinePlans {};

class ExpertSums : public CombinePlans {};

class Tails : public CombinePlans {};

INSTANTIATE_TEST_SUITE_P(Layouts, OwnerSums, testing::Values(kExpertMajor, kExpertPadded), name_of);
INSTANTIATE_TEST_SUITE_P(Layouts, OwnerMoves, testing::Values(kRankMajor, kMajorPerExpert, kPaddedPerExpert), name_of);
INSTANTIATE_TEST_SUITE_P(Layouts, RankSums, testing::Values(kRankMajor, kExpertMajor, kExpertPadded), name_of);
INSTANTIATE_TEST_SUITE_P(Layouts, ExpertSums, testing::Values(kMajorPerExpert, kPaddedPerExpert), name_of);
INSTANTIATE_TEST_SUITE_P(Layouts,
                         OwnerSlots,
                         testing::Values(kRankMajor, kExpertMajor, kExpertPadded, kMajorPerExpert, kPaddedPerExpert),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Layouts,
                         Tails,
                         testing::Values(kRankMajor, kExpertMajor, kExpertPadded, kMajorPerExpert, kPaddedPerExpert),
                         name_of);

TEST_P(OwnerSums, AddKeptRowsInTopkOrder) {
  for_each_case([](Exchange& x) {
    const int topk = x.c.config.num_topk;
    for (int owner = 0; owner < x.c.num_ranks; ++owner) {
      for (int home = 0; home < x.c.num_ranks; ++home) {
        const RowRange rows = x.rows_from(owner, home);
        const RowsView results = results_of(owner);
        Terms terms(idx(rows.last - rows.first), idx(topk));
        SumTerms view = terms.view();
        const std::vector<std::int32_t> places = x.slots_for(owner, home);
        std::byte* data = x.slots_of(home).data;
        list_owner_sums(x.shape(owner), x.receive(owner), rows, results, nullptr, data, places, view);
        std::int32_t num = 0;
        for (std::int32_t row = rows.first; row < rows.last; ++row) {
          const int token = x.receive(owner).token[idx(row)];
          const auto output = idx(row - rows.first);
          ASSERT_EQ(view.first[output], num);
          ASSERT_EQ(view.output_row[output], x.slot(home, x.receive(owner).home_slot[idx(row)], token));
          for (int k = 0; k < topk; ++k) {
            const std::int64_t at = x.place(owner, {home, token}, k);
            if (at < 0) continue;
            ASSERT_EQ(view.term[idx(num)], results.row(at)) << "token " << token << " of " << home << ", choice " << k;
            ASSERT_EQ(view.weight[idx(num)], x.receive(owner).weight[idx(row) * idx(topk) + idx(k)]);
            ++num;
          }
        }
        ASSERT_EQ(view.first[idx(rows.last - rows.first)], num);
      }
    }
  });
}

TEST_P(OwnerSlots, TellWhichRowsHaveAPayload) {
  for_each_case([](Exchange& x) {
    for (int owner = 0; owner < x.c.num_ranks; ++owner) {
      for (int home = 0; home < x.c.num_ranks; ++home) {
        const RowRange rows = x.rows_from(owner, home);
        std::vector<std::int32_t> slot(idx((rows.last - rows.first) * x.c.config.num_topk));
        std::vector<std::uint8_t> has_payload(slot.size());
        const HomeSlots slots{nullptr, x.tokens, 0};
        const std::size_t num = list_owner_slots(x.shape(owner), x.receive(owner), rows, slots, slot, has_payload);
        std::map<std::int64_t, bool> expected;  // by slot
        for (std::int32_t row = rows.first; row < rows.last; ++row) {
          const int token = x.receive(owner).token[idx(row)];
          const std::vector<int> ranks = cases::ranks_of(x.c, home, token);
          for (int k = 0; k < x.c.config.num_topk; ++k) {
            const int expert = cases::id_at(x.c, home, token, k);
            if (cases::owner_of(x.c, expert) != owner) continue;
            int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), owner) - ranks.begin());
            if (is_per_expert()) {
              for (place = 0; cases::id_at(x.c, home, token, place) != expert;) ++place;
            }
            expected[place * x.tokens + token] |= x.place(owner, {home, token}, k) >= 0;
          }
        }
        ASSERT_EQ(num, expected.size());
        for (std::size_t i = 0; i < num; ++i) {
          ASSERT_TRUE(expected.contains(slot[i])) << "row " << i << " goes to slot " << slot[i];
          ASSERT_EQ(has_payload[i] != 0, expected[slot[i]]) << "row " << i << ", slot " << slot[i];
        }
      }
    }
  });
}

TEST_P(OwnerMoves, BringRowsThatTravelAsTheyAreToTheirHomeSlots) {
  for_each_case([](Exchange& x) {
    for (int owner = 0; owner < x.c.num_ranks; ++owner) {
      for (int home = 0; home < x.c.num_ranks; ++home) {
        const RowRange rows = x.rows_from(owner, home);
        std::vector<RowMove> moves(idx((rows.last - rows.first) * x.c.config.num_topk));
        moves.resize(list_owner_moves(x.shape(owner), x.receive(owner), rows, x.slots_for(owner, home), moves));
        std::map<std::int64_t, std::int64_t> by_slot;
        for (const RowMove& move : moves) ASSERT_TRUE(by_slot.emplace(move.dst, move.src).second) << "slot twice";
        for (std::int32_t row = rows.first; row < rows.last; ++row) {
          const int token = x.receive(owner).token[idx(row)];
          const std::vector<int> ranks = cases::ranks_of(x.c, home, token);
          for (int k = 0; k < x.c.config.num_topk; ++k) {
            const std::int64_t at = x.place(owner, {home, token}, k);
            if (at < 0) continue;
            std::int64_t slot = std::find(ranks.begin(), ranks.end(), owner) - ranks.begin();
            if (is_per_expert()) {
              for (slot = 0;
                   cases::id_at(x.c, home, token, static_cast<int>(slot)) != cases::id_at(x.c, home, token, k);)
                ++slot;
            }
            ASSERT_TRUE(by_slot.contains(slot * x.tokens + token)) << "token " << token << ", choice " << k;
            ASSERT_EQ(by_slot[slot * x.tokens + token], at) << "token " << token << ", choice " << k;
          }
        }
        std::set<std::int64_t> kept;
        for (const WireRow& row : cases::wire_rows(x.c, owner)) {
          for (int k = 0; row.src == home && k < x.c.config.num_topk; ++k) kept.insert(x.place(owner, row, k));
        }
        kept.erase(-1);
        ASSERT_EQ(by_slot.size(), kept.size()) << "every kept row leaves once";
      }
    }
  });
}

TEST_P(RankSums, AddRanksByThePositionOfTheirLastChosenExpert) {
  for_each_case([](Exchange& x) {
    for (int home = 0; home < x.c.num_ranks; ++home) {
      const int num_tokens = x.c.choices[idx(home)].num_tokens;
      const RowsView results = results_of(home);
      Terms terms(idx(num_tokens), idx(x.c.config.num_topk));
      SumTerms view = terms.view();
      list_home_sums(
          x.shape(home), x.send(home), x.receive(home), 0, num_tokens, results, nullptr, x.slots_of(home), {}, view);
      std::int32_t num = 0;
      for (int token = 0; token < num_tokens; ++token) {
        ASSERT_EQ(view.first[idx(token)], num) << "token " << token;
        std::int64_t slot = 0;
        for (const int owner : cases::ranks_of(x.c, home, token)) {
          std::int64_t kept = -1;
          for (int k = 0; k < x.c.config.num_topk; ++k) kept = std::max(kept, x.place(owner, {home, token}, k));
          const bool lies_here = owner == home && GetParam().layout == Layout::rank_major;
          if (kept >= 0) {
            ASSERT_EQ(view.term[idx(num)], lies_here ? results.row(kept) : x.slot(home, slot, token))
                << "token " << token;
            ++num;
          }
          ++slot;
        }
      }
      ASSERT_EQ(view.first[idx(num_tokens)], num);
    }
  });
}

TEST_P(ExpertSums, AddExpertsInTopkOrder) {
  for_each_case([](Exchange& x) {
    const std::size_t topk = idx(x.c.config.num_topk);
    for (int home = 0; home < x.c.num_ranks; ++home) {
      const cases::Choices& choices = x.c.choices[idx(home)];
      const float* weights = choices.weights.empty() ? nullptr : choices.weights.data();
      const RowsView results = results_of(home);
      Terms terms(idx(choices.num_tokens), topk);
      SumTerms view = terms.view();
      list_home_sums(x.shape(home),
                     x.send(home),
                     x.receive(home),
                     0,
                     choices.num_tokens,
                     results,
                     weights,
                     x.slots_of(home),
                     {},
                     view);
      std::int32_t num = 0;
      for (int token = 0; token < choices.num_tokens; ++token) {
        ASSERT_EQ(view.first[idx(token)], num) << "token " << token;
        for (int k = 0; k < x.c.config.num_topk; ++k) {
          const int expert = cases::id_at(x.c, home, token, k);
          if (expert < 0) continue;
          const int owner = cases::owner_of(x.c, expert);
          const std::int64_t at = x.place(owner, {home, token}, k);
          if (at < 0) continue;
          int slot = 0;
          while (cases::id_at(x.c, home, token, slot) != expert) ++slot;
          ASSERT_EQ(view.term[idx(num)], owner == home ? results.row(at) : x.slot(home, slot, token))
              << token << ", " << k;
          ASSERT_EQ(view.weight[idx(num)], weights == nullptr ? 0.0F : weights[idx(token) * topk + idx(k)]);
          ++num;
        }
      }
      ASSERT_EQ(view.first[idx(choices.num_tokens)], num);
    }
  });
}

TEST_P(Tails, BringLanesAndMissingChoicesHome) {
  for_each_case([](Exchange& x) {
    const std::size_t topk = idx(x.c.config.num_topk);
    for (int home = 0; home < x.c.num_ranks; ++home) {
      const int num_tokens = x.c.choices[idx(home)].num_tokens;
      std::vector<float> lane_out(idx(num_tokens) * topk, -7.0F);
      std::vector<std::uint64_t> missing(idx(num_tokens), ~std::uint64_t{0});
      float* lane = x.c.config.combine_lane ? lane_out.data() : nullptr;
      const std::int64_t num_incomplete = read_tails(x.shape(home),
                                                     x.send(home),
                                                     x.receive(home),
                                                     0,
                                                     num_tokens,
                                                     x.lane(home),
                                                     x.slots_of(home),
                                                     lane,
                                                     missing.data());
      std::int64_t expected_incomplete = 0;
      for (int token = 0; token < num_tokens; ++token) {
        std::uint64_t expected_missing = 0;
        for (int k = 0; k < x.c.config.num_topk; ++k) {
          const int expert = cases::id_at(x.c, home, token, k);
          const int owner = cases::owner_of(x.c, expert);
          const std::int64_t at = expert < 0 ? -1 : x.place(owner, {home, token}, k);
          if (expert >= 0 && at < 0) expected_missing |= std::uint64_t{1} << k;
          if (lane == nullptr) continue;
          ASSERT_EQ(lane[idx(token) * topk + idx(k)], at < 0 ? 0.0F : Group::lane_value(owner, at, k))
              << token << ", choice " << k;
        }
        ASSERT_EQ(missing[idx(token)], expected_missing) << "token " << token << " of rank " << home;
        expected_incomplete += expected_missing != 0 ? 1 : 0;
      }
      ASSERT_EQ(num_incomplete, expected_incomplete);
    }
  });
}

TEST(RowsOfTokens, AreThoseOfASourceWhoseTokenLiesInTheRange) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    const Case c = cases::random_case(seed, Layout::rank_major);
    const Group group(c);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      const std::vector<WireRow> wire = cases::wire_rows(c, rank);
      for (int src = 0; src < c.num_ranks; ++src) {
        for (int first = 0; first <= c.config.max_tokens_per_rank; ++first) {
          for (int last = first; last <= c.config.max_tokens_per_rank + 2; ++last) {
            const RowRange range = rows_of_tokens(group.receive(rank), src, first, last);
            for (std::int32_t row = 0; row < static_cast<std::int32_t>(wire.size()); ++row) {
              const auto [from, token] = wire[idx(row)];
              const bool is_wanted = from == src && token >= first && token < last;
              ASSERT_EQ(row >= range.first && row < range.last, is_wanted)
                  << c.text() << ", rank " << rank << ", source " << src << ", tokens " << first << " to " << last
                  << ", row " << row;
            }
          }
        }
      }
    }
  }
}

TEST(GivenWeights, MultiplyTheOwnersRowsInTopkOrder) {
  Case c;
  c.config.num_experts = 2;
  c.config.num_topk = 3;
  c.config.hidden = 1;
  c.config.max_tokens_per_rank = 2;
  c.config.layout = Layout::expert_major;
  c.num_ranks = 1;
  c.choices = {{2, {1, -1, 0, 0, 0, 1}, {}}};
  Exchange x(c);
  const std::vector<float> given{1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  Terms terms(2, 3);
  SumTerms view = terms.view();
  list_owner_sums(x.shape(), x.receive(0), {0, 2}, results_of(0), given.data(), x.slots_of(0).data, {}, view);
  EXPECT_THAT(terms.first, testing::ElementsAre(0, 2, 5));
  EXPECT_THAT(std::span(terms.weight).first(5), testing::ElementsAre(1.0F, 3.0F, 4.0F, 5.0F, 6.0F));
  // Expert 0 has tokens 0 and 1 in rows 0 and 1, expert 1 in rows 2 and 3; token 1 chose expert 0 twice.
  std::vector<std::int64_t> rows;
  for (std::size_t t = 0; t < 5; ++t) rows.push_back((terms.term[t] - results_of(0).data) / kRowBytes);
  EXPECT_THAT(rows, testing::ElementsAre(2, 0, 1, 1, 3));
}

TEST(HomeSlots, CountTokensFromTheRoundsFirst) {
  const HomeSlots slots{nullptr, 10, 40};
  EXPECT_EQ(slots.index(0, 40), 0);
  EXPECT_EQ(slots.index(2, 47), 27);
}

}  // namespace
}  // namespace moebus::model

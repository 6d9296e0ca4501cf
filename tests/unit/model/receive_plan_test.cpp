#include "model/receive_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "plan_cases.hpp"

namespace moebus::model {
namespace {

using base::idx;
using cases::Case;
using cases::Expected;
using cases::Plans;
using cases::WireRow;

constexpr unsigned kNumSeeds = 150;

class RandomPlans : public testing::TestWithParam<Layout> {
 protected:
  /// Calls `check(case, plans, rank)` for every rank of many random cases of this layout.
  template <class Check>
  void for_each_rank(Check check) {
    for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
      const Case c = cases::random_case(seed, GetParam());
      const Plans plans(c);
      for (int rank = 0; rank < c.num_ranks; ++rank) {
        SCOPED_TRACE(c.text() + ", at rank " + std::to_string(rank));
        ASSERT_NO_FATAL_FAILURE(check(c, plans, rank));
      }
    }
  }
};

std::string name_of(const testing::TestParamInfo<Layout>& layout) { return std::string(to_string(layout.param)); }

class RandomExpertPlans : public RandomPlans {};

INSTANTIATE_TEST_SUITE_P(Layouts,
                         RandomPlans,
                         testing::Values(Layout::rank_major, Layout::expert_major, Layout::expert_padded),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Layouts,
                         RandomExpertPlans,
                         testing::Values(Layout::expert_major, Layout::expert_padded),
                         name_of);

TEST_P(RandomPlans, ListWireRowsBySourceAndTokenWithTheirLocalChoices) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    const ReceivePlan& plan = plans.receive[idx(rank)].plan;
    const std::vector<WireRow> wire = cases::wire_rows(c, rank);
    ASSERT_EQ(plan.num_wire_rows(plans.shape), static_cast<std::int32_t>(wire.size()));
    std::vector<std::int32_t> rank_counts(idx(c.num_ranks), 0);
    for (std::size_t row = 0; row < wire.size(); ++row) {
      const auto [src, token] = wire[row];
      ++rank_counts[idx(src)];
      ASSERT_LE(plan.first_row[idx(src)], static_cast<std::int32_t>(row));
      ASSERT_GT(plan.first_row[idx(src) + 1], static_cast<std::int32_t>(row));
      ASSERT_EQ(plan.token[row], token) << "wire row " << row;
      const std::vector<int> ranks = cases::ranks_of(c, src, token);
      ASSERT_EQ(ranks.at(idx(plan.home_slot[row])), rank) << "wire row " << row;
      for (int k = 0; k < c.config.num_topk; ++k) {
        const std::size_t at = row * idx(c.config.num_topk) + idx(k);
        const int expert = cases::id_at(c, src, token, k);
        const bool is_here = cases::owner_of(c, expert) == rank;
        ASSERT_EQ(plan.choice[at], is_here ? expert - cases::experts_of(c, rank).front() : -1)
            << row << ", choice " << k;
        const auto& weights = c.choices[idx(src)].weights;
        const float weight = is_here && !weights.empty() ? weights[idx(token * c.config.num_topk + k)] : 0.0F;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(plan.weight[at]), std::bit_cast<std::uint32_t>(weight))
            << row << ", " << k;
      }
    }
    for (std::size_t src = 0; src < idx(c.num_ranks); ++src) ASSERT_EQ(plan.rank_counts[src], rank_counts[src]);
  });
}

TEST_P(RandomPlans, CountRowsPerExpertWithAndWithoutCapacity) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    const ReceivePlan& plan = plans.receive[idx(rank)].plan;
    const Expected expected = cases::expect(c, rank, plans.shape.capacity_rows);
    ASSERT_EQ(plan.num_rows, expected.num_rows);
    ASSERT_EQ(plan.num_overflowed, expected.num_overflowed);
    ASSERT_EQ(plan.capacity_rows, plans.shape.capacity_rows);
    for (std::size_t seat = 0; seat < expected.wanted.size(); ++seat) {
      ASSERT_EQ(plan.wanted[seat], expected.wanted[seat]) << "seat " << seat;
      ASSERT_EQ(plan.counts[seat], expected.counts[seat]) << "seat " << seat;
    }
    for (std::size_t seat = 0; seat < expected.offsets.size(); ++seat) {
      ASSERT_EQ(plan.offsets[seat], expected.offsets[seat]) << "seat " << seat;
    }
  });
}

TEST_P(RandomExpertPlans, GiveEveryKeptChoiceItsResultRow) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    const ReceivePlan& plan = plans.receive[idx(rank)].plan;
    const Expected expected = cases::expect(c, rank, plans.shape.capacity_rows);
    const std::vector<WireRow> wire = cases::wire_rows(c, rank);
    for (std::size_t row = 0; row < wire.size(); ++row) {
      for (int k = 0; k < c.config.num_topk; ++k) {
        ASSERT_EQ(plan.position[row * idx(c.config.num_topk) + idx(k)],
                  cases::place_of(c, expected, rank, wire[row], k))
            << "source " << wire[row].src << ", token " << wire[row].token << ", choice " << k;
      }
    }
  });
}

TEST_P(RandomPlans, SayOfEveryResultRowWhereItComesFrom) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    const ReceivePlan& plan = plans.receive[idx(rank)].plan;
    for (const auto& [at, row] : cases::expect(c, rank, plans.shape.capacity_rows).rows) {
      ASSERT_EQ(plan.result_src_rank[idx(at)], row.from.src) << "result row " << at;
      if (c.config.layout == Layout::rank_major) continue;  // there the wire rows' own tokens serve
      ASSERT_EQ(plan.result_src_token[idx(at)], row.from.token) << "result row " << at;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(plan.result_weight[idx(at)]), std::bit_cast<std::uint32_t>(row.weight))
          << "result row " << at;
    }
  });
}

TEST_P(RandomPlans, FindTheWireRowOfEveryOwnToken) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    const ReceivePlan& plan = plans.receive[idx(rank)].plan;
    const std::vector<WireRow> wire = cases::wire_rows(c, rank);
    for (int token = 0; token < c.config.max_tokens_per_rank; ++token) {
      const auto found = std::find(wire.begin(), wire.end(), WireRow{rank, token});
      const auto expected = found == wire.end() ? -1 : static_cast<std::int32_t>(found - wire.begin());
      ASSERT_EQ(plan.own_row[idx(token)], expected) << "token " << token;
    }
  });
}

TEST_P(RandomPlans, MoveEveryRowToAllItsKeptResultRowsOnce) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    const ReceivePlan& plan = plans.receive[idx(rank)].plan;
    const Expected expected = cases::expect(c, rank, plans.shape.capacity_rows);
    std::map<std::int64_t, WireRow> filled;
    for (int src = 0; src < c.num_ranks; ++src) {
      const std::int32_t first = plan.first_row[idx(src)];
      const std::int32_t last = plan.first_row[idx(src) + 1];
      std::vector<RowMove> by_token(idx((last - first) * max_copies(plans.shape)));
      std::vector<RowMove> by_index(by_token.size());
      const std::size_t num = list_moves(plans.shape, plan, first, last, MoveSource::token, by_token);
      ASSERT_EQ(list_moves(plans.shape, plan, first, last, MoveSource::wire_index, by_index), num);
      for (std::size_t i = 0; i < num; ++i) {
        ASSERT_TRUE(filled.emplace(by_token[i].dst, WireRow{src, by_token[i].src}).second)
            << by_token[i].dst << " twice";
        ASSERT_EQ(by_index[i].dst, by_token[i].dst);
        ASSERT_EQ(plan.token[idx(first + by_index[i].src)], by_token[i].src);
      }
    }
    for (const auto& [at, row] : expected.rows) {
      if (row.from.src < 0) continue;
      ASSERT_TRUE(filled.contains(at)) << "result row " << at << " stays empty";
      ASSERT_EQ(filled[at], row.from) << "result row " << at;
      filled.erase(at);
    }
    ASSERT_TRUE(filled.empty()) << "result row " << filled.begin()->first << " should stay empty";
  });
}

TEST_P(RandomPlans, PutEveryRowWhereItsReceiverFansItOutFrom) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    std::vector<const std::int32_t*> counts;
    for (const auto& of_source : plans.counts) counts.push_back(of_source.data());
    const std::vector<std::int64_t> granted(idx(c.num_ranks), plans.shape.capacity_rows);
    cases::Carved<RegionPlan> region(plans.shape);
    const SendPlan& send = plans.send[idx(rank)].plan;
    plan_region(plans.shape, send, rank, counts, granted, region.plan);
    for (int dst = 0; dst < c.num_ranks; ++dst) {
      const ReceivePlan& receive = plans.receive[idx(dst)].plan;
      const std::int32_t first = receive.first_row[idx(rank)];
      ASSERT_EQ(receive.first_row[idx(rank) + 1] - first, send.num_rows_to[idx(dst)]);
      for (std::int32_t i = 0; i < send.num_rows_to[idx(dst)]; ++i) {
        // What the receiver makes of the row: all its result rows but the first are copies of the first.
        std::vector<RowMove> moves(idx(max_copies(plans.shape)));
        const std::size_t num = list_moves(plans.shape, receive, first + i, first + i + 1, MoveSource::token, moves);
        const std::int32_t position = region.plan.positions[idx(dst) * idx(c.config.max_tokens_per_rank) + idx(i)];
        ASSERT_EQ(position, num > 0 ? moves[0].dst : -1) << "to rank " << dst << ", row " << i;
        std::vector<RowMove> copies(moves.size());
        const std::size_t num_copies = list_fan_out(plans.shape, receive, first + i, first + i + 1, copies);
        ASSERT_EQ(num_copies, num > 0 ? num - 1 : 0);
        for (std::size_t copy = 0; copy < num_copies; ++copy) {
          ASSERT_EQ(copies[copy].src, position);
          ASSERT_EQ(copies[copy].dst, moves[copy + 1].dst);
        }
      }
    }
  });
}

// By hand
// -------------------------------------------------------------------------------------------------------------------------

/// Two ranks with experts {0, 1} and {2, 3}; top-3.
Case small_case(Layout layout) {
  Case c;
  c.config.num_experts = 4;
  c.config.num_topk = 3;
  c.config.hidden = 1;
  c.config.max_tokens_per_rank = 3;
  c.config.layout = layout;
  c.num_ranks = 2;
  // Rank 0: token 0 stays and leaves, token 1 has no expert, token 2 chose expert 1 twice.
  c.choices.push_back({3, {3, 0, -1, -1, -1, -1, 1, 0, 1}, {0.5F, 0.25F, 9.0F, 9.0F, 9.0F, 9.0F, 2.0F, 4.0F, 8.0F}});
  c.choices.push_back({1, {1, 2, 3}, {1.0F, 16.0F, 32.0F}});
  return c;
}

TEST(ReceivePlan, GroupsByExpertWithAlignedOffsets) {
  Case c = small_case(Layout::expert_major);
  c.config.expert_alignment = 4;
  const Plans plans(c);
  const ReceivePlan& plan = plans.receive[0].plan;
  // Expert 0: tokens 0 and 2 of rank 0. Expert 1: token 2 of rank 0 (weights 2 + 8), token 0 of rank 1.
  EXPECT_THAT(plan.offsets.first(3), testing::ElementsAre(0, 4, 8));
  EXPECT_THAT(plan.counts.first(2), testing::ElementsAre(2, 2));
  EXPECT_EQ(plan.num_rows, 8);
  EXPECT_THAT(plan.result_src_rank.first(8), testing::ElementsAre(0, 0, -1, -1, 0, 1, -1, -1));
  EXPECT_THAT(plan.result_src_token.first(8), testing::ElementsAre(0, 2, -1, -1, 2, 0, -1, -1));
  EXPECT_THAT(plan.result_weight.first(8), testing::ElementsAre(0.25F, 4.0F, 0.0F, 0.0F, 10.0F, 1.0F, 0.0F, 0.0F));
  EXPECT_THAT(plan.position.first(9), testing::ElementsAre(-1, 0, -1, 4, 1, 4, 5, -1, -1));
  EXPECT_THAT(plan.own_row, testing::ElementsAre(0, -1, 1));
}

TEST(ReceivePlan, DropsTheLastExpertsFirstWhenTheCapacityIsReached) {
  Case c = small_case(Layout::expert_major);
  c.config.capacity_rows = 3;
  const Plans plans(c);
  const ReceivePlan& plan = plans.receive[0].plan;
  EXPECT_THAT(plan.wanted.first(2), testing::ElementsAre(2, 2));
  EXPECT_THAT(plan.counts.first(2), testing::ElementsAre(2, 1));
  EXPECT_THAT(plan.offsets.first(3), testing::ElementsAre(0, 2, 4));
  EXPECT_EQ(plan.num_rows, 3);
  EXPECT_EQ(plan.num_overflowed, 1);
}

TEST(ReceivePlan, DropsTheHighestSourceRanksFirstInRankMajor) {
  Case c = small_case(Layout::rank_major);
  c.config.capacity_rows = 2;
  const Plans plans(c);
  const ReceivePlan& plan = plans.receive[0].plan;
  EXPECT_EQ(plan.num_rows, 2);
  EXPECT_EQ(plan.num_overflowed, 1);
  EXPECT_THAT(plan.result_src_rank.first(2), testing::ElementsAre(0, 0));
  EXPECT_THAT(plan.wanted.first(2), testing::ElementsAre(2, 2));
  EXPECT_THAT(plan.counts.first(2), testing::ElementsAre(2, 1));
  EXPECT_THAT(plan.rank_counts, testing::ElementsAre(2, 1));
}

TEST(ReceivePlan, HasWeightsOnlyIfEverySourceWithRowsSentThem) {
  Case c = small_case(Layout::rank_major);
  EXPECT_TRUE(Plans(c).receive[0].plan.has_weights);
  c.choices[1].weights.clear();
  EXPECT_FALSE(Plans(c).receive[0].plan.has_weights);
  c.choices[1] = {};  // no rows at all: its silence says nothing
  EXPECT_TRUE(Plans(c).receive[0].plan.has_weights);
}

TEST(ReceivePlan, TakesNothingFromMaskedChoicesEvenIfTheirWeightIsNan) {
  Case c = small_case(Layout::expert_major);
  c.choices[0].weights[2] = std::numeric_limits<float>::quiet_NaN();
  const Plans plans(c);
  EXPECT_EQ(plans.receive[0].plan.weight[2], 0.0F);
  EXPECT_EQ(plans.receive[0].plan.result_weight[0], 0.25F);
}

}  // namespace
}  // namespace moebus::model

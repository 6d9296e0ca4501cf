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

constexpr unsigned kNumSeeds = 120;

class RandomPlans : public testing::TestWithParam<Layout> {
 protected:
  /// Calls `check(case, plans, rank)` for every rank of many random cases of this layout, on one node and on several.
  template <class Check>
  void for_each_rank(Check check) {
    for (unsigned seed = 1; seed <= 2 * kNumSeeds; ++seed) {
      const Case c =
          seed % 2 == 0 ? cases::random_case(seed / 2, GetParam()) : cases::random_node_case(seed, GetParam());
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
      ASSERT_EQ(plan.home_slot[row], cases::home_slot_of(c, src, token, rank)) << "wire row " << row;
      for (int k = 0; k < c.config.num_topk; ++k) {
        const std::size_t at = row * idx(c.config.num_topk) + idx(k);
        const int seat = cases::id_at(c, src, token, k);
        const bool is_here = cases::owner_of(c, seat) == rank;
        ASSERT_EQ(plan.choice[at], is_here ? seat - cases::seats_of(c, rank).front() : -1) << row << ", choice " << k;
        const auto& weights = c.choices[idx(src)].weights;
        const float weight = is_here && !weights.empty() ? weights[idx(token * c.config.num_topk + k)] : 0.0F;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(plan.weight[at]), std::bit_cast<std::uint32_t>(weight))
            << row << ", " << k;
      }
    }
    for (std::size_t src = 0; src < idx(c.num_ranks); ++src) ASSERT_EQ(plan.rank_counts[src], rank_counts[src]);
  });
}

TEST_P(RandomPlans, CountRowsPerSeatWithAndWithoutCapacity) {
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
      const std::int32_t round_first = plan.num_table_rows[idx(src)] / 2;
      ASSERT_EQ(list_moves(plans.shape, plan, first, last, MoveSource::round, by_index, round_first), num);
      std::int32_t row = first;
      for (std::size_t i = 0; i < num; ++i) {
        ASSERT_TRUE(filled.emplace(by_token[i].dst, WireRow{src, by_token[i].src}).second)
            << by_token[i].dst << " twice";
        ASSERT_EQ(by_index[i].dst, by_token[i].dst);
        while (plan.token[idx(row)] != by_token[i].src) ++row;
        ASSERT_EQ(by_index[i].src, plan.table_row[idx(row)] - round_first);
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
    const Shape& here = plans.shapes[idx(rank)];
    cases::Carved<RegionPlan> region(here);
    const SendPlan& send = plans.send[idx(rank)].plan;
    plan_region(here, send, rank, counts, granted, region.plan);
    for (int dst = 0; dst < c.num_ranks; ++dst) {
      if (cases::is_relayed(c, rank, dst)) continue;
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

TEST_P(RandomPlans, KnowTheRowsOfEveryTableAndWhichOfThemAreHere) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    const ReceivePlan& plan = plans.receive[idx(rank)].plan;
    for (int src = 0; src < c.num_ranks; ++src) {
      std::vector<int> table;  // tokens whose rows come to this rank, or to the gateway of its node
      for (int token = 0; token < c.choices[idx(src)].num_tokens; ++token) {
        const std::vector<int> hops = cases::hops_of(c, src, token);
        if (std::find(hops.begin(), hops.end(), cases::hop_of(c, src, rank)) != hops.end()) table.push_back(token);
      }
      ASSERT_EQ(plan.num_table_rows[idx(src)], static_cast<int>(table.size())) << "source " << src;
      for (std::int32_t row = plan.first_row[idx(src)]; row < plan.first_row[idx(src) + 1]; ++row) {
        ASSERT_EQ(table.at(idx(plan.table_row[idx(row)])), plan.token[idx(row)]) << "source " << src;
      }
    }
  });
}

TEST_P(RandomPlans, FindTheRowsOfARoundHoweverTheTableIsCut) {
  for_each_rank([](const Case& c, const Plans& plans, int rank) {
    const ReceivePlan& plan = plans.receive[idx(rank)].plan;
    for (int src = 0; src < c.num_ranks; ++src) {
      std::int32_t next = plan.first_row[idx(src)];
      constexpr int kRoundRows = 3;
      for (int first = 0; first < plan.num_table_rows[idx(src)]; first += kRoundRows) {
        const RowRange rows = rows_of_round(plan, src, first, first + kRoundRows);
        ASSERT_EQ(rows.first, next) << "source " << src << ", round from " << first;
        for (std::int32_t row = rows.first; row < rows.last; ++row) {
          ASSERT_GE(plan.table_row[idx(row)], first);
          ASSERT_LT(plan.table_row[idx(row)], first + kRoundRows);
        }
        next = rows.last;
      }
      ASSERT_EQ(next, plan.first_row[idx(src) + 1]) << "source " << src;
    }
  });
}

// Gateways change the way, not the plan
// ----------------------------------------------------------------------------------------------------------------------

template <class T>
std::vector<T> first_of(std::span<const T> values, std::int64_t num) {
  return {values.begin(), values.begin() + num};
}

void expect_same_results(const Shape& shape, const ReceivePlan& a, const ReceivePlan& b) {
  const std::int64_t rows = a.num_wire_rows(shape);
  const std::int64_t choices = rows * shape.config.num_topk;
  const bool has_groups = shape.config.layout != Layout::rank_major;
  ASSERT_EQ(a.first_row, b.first_row);
  EXPECT_EQ(a.num_rows, b.num_rows);
  EXPECT_EQ(a.num_overflowed, b.num_overflowed);
  EXPECT_EQ(a.has_weights, b.has_weights);
  EXPECT_EQ(first_of<std::int32_t>(a.token, rows), first_of<std::int32_t>(b.token, rows));
  EXPECT_EQ(first_of<std::int32_t>(a.choice, choices), first_of<std::int32_t>(b.choice, choices));
  EXPECT_EQ(first_of<float>(a.weight, choices), first_of<float>(b.weight, choices));
  EXPECT_THAT(a.rank_counts, testing::ElementsAreArray(b.rank_counts));
  EXPECT_THAT(a.own_row, testing::ElementsAreArray(b.own_row));
  const int local = shape.placement.num_local(shape.rank);
  EXPECT_EQ(first_of<std::int32_t>(a.counts, local), first_of<std::int32_t>(b.counts, local));
  EXPECT_EQ(first_of<std::int32_t>(a.wanted, local), first_of<std::int32_t>(b.wanted, local));
  if (has_groups) {
    EXPECT_EQ(first_of<std::int32_t>(a.position, choices), first_of<std::int32_t>(b.position, choices));
    EXPECT_EQ(first_of<std::int64_t>(a.offsets, local + 1), first_of<std::int64_t>(b.offsets, local + 1));
  }
  // Rows that nobody fills keep what lay there; the same in both.
  EXPECT_THAT(a.result_src_rank, testing::ElementsAreArray(b.result_src_rank));
  EXPECT_THAT(a.result_src_token, testing::ElementsAreArray(b.result_src_token));
}

TEST_P(RandomPlans, AreTheSameThroughGatewaysAsDirectly) {
  for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
    Case c = cases::random_node_case(seed, GetParam());
    c.config.inter_node = InterNode::gateway;
    const Plans relayed(c);
    c.config.inter_node = InterNode::direct;
    const Plans direct(c);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      SCOPED_TRACE(c.text() + ", at rank " + std::to_string(rank));
      ASSERT_NO_FATAL_FAILURE(expect_same_results(
          direct.shapes[idx(rank)], relayed.receive[idx(rank)].plan, direct.receive[idx(rank)].plan));
      ASSERT_FALSE(HasFailure());
    }
  }
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

TEST(ReceivePlan, AsksForWeightsOnlyFromSourcesWhoseRowsAreHereNotOfThoseForItsNeighbours) {
  Case c = small_case(Layout::rank_major);
  c.num_ranks = 4;
  c.node_of = {0, 1, 0, 1};
  c.choices = {{1, {1, -1, -1}, {1.0F, 0.0F, 0.0F}}, {}, {1, {3, -1, -1}, {}}, {}};
  const Plans plans(c);
  // Rank 2's row without weights is for rank 3; rank 1 only finds it in their gateways' table.
  ASSERT_EQ(plans.receive[1].plan.num_table_rows[2], 1);
  EXPECT_TRUE(plans.receive[1].plan.has_weights);
  EXPECT_FALSE(plans.receive[3].plan.has_weights);
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

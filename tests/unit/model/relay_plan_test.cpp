#include "model/relay_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "plan_cases.hpp"

namespace moebus::model {
namespace {

using base::idx;
using cases::Case;
using cases::Plans;
using testing::ElementsAre;

constexpr unsigned kNumSeeds = 150;

/// Calls `check(case, plans, rank)` for every rank of many cases with several nodes and gateways.
template <class Check>
void for_each_gateway(Check check) {
  for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
    Case c = cases::random_node_case(seed, seed % 2 == 0 ? Layout::rank_major : Layout::expert_major);
    c.config.inter_node = InterNode::gateway;
    const Plans plans(c);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      SCOPED_TRACE(c.text() + ", at rank " + std::to_string(rank));
      ASSERT_NO_FATAL_FAILURE(check(c, plans, rank));
    }
  }
}

TEST(RelayPlan, HasARowForEveryTokenOfASourceServedThatSomeNeighbourNeeds) {
  for_each_gateway([](const Case& c, const Plans& plans, int rank) {
    const RelayPlan& plan = plans.relay[idx(rank)].plan;
    std::vector<int> served;
    for (int src = 0; src < c.num_ranks; ++src) {
      if (cases::is_relayed(c, src, rank) && cases::hop_of(c, src, rank) == rank) served.push_back(src);
    }
    ASSERT_EQ(plan.served, served);
    std::int32_t row = 0;
    for (std::size_t index = 0; index < served.size(); ++index) {
      const int src = served[index];
      ASSERT_EQ(plan.first_row[index], row);
      for (int token = 0; token < c.choices[idx(src)].num_tokens; ++token) {
        std::uint64_t needed = 0;
        for (const int owner : cases::ranks_of(c, src, token)) {
          if (c.node_of[idx(owner)] == c.node_of[idx(rank)]) needed |= std::uint64_t{1} << owner;
        }
        if (needed == 0) continue;
        ASSERT_LT(row, plan.first_row[index + 1]) << "source " << src << ", token " << token;
        ASSERT_EQ(plan.token[idx(row)], token) << "source " << src;
        ASSERT_EQ(plan.rank_set[idx(row)], needed) << "source " << src << ", token " << token;
        ASSERT_EQ(cases::hops_of(c, src, token).at(idx(plan.home_slot[idx(row)])), rank) << "token " << token;
        ++row;
      }
      ASSERT_EQ(plan.first_row[index + 1], row) << "source " << src;
    }
  });
}

TEST(RelayPlan, ForwardsToEveryNeighbourExactlyTheRowsThatItsPlanWants) {
  for_each_gateway([](const Case& c, const Plans& plans, int rank) {
    const RelayPlan& plan = plans.relay[idx(rank)].plan;
    for (int index = 0; index < plan.num_served(); ++index) {
      const int src = plan.served[idx(index)];
      const std::int32_t first = plan.first_row[idx(index)];
      const std::int32_t last = plan.first_row[idx(index) + 1];
      for (const int dst : cases::neighbours_of(c, rank)) {
        const ReceivePlan& wanted = plans.receive[idx(dst)].plan;
        const std::int32_t wire = wanted.first_row[idx(src)];
        const std::int32_t num_wanted = wanted.first_row[idx(src) + 1] - wire;
        ASSERT_EQ(wanted.num_table_rows[idx(src)], last - first) << src << " to " << dst;
        std::vector<RowMove> by_token(idx(last - first));
        std::vector<RowMove> by_place(by_token.size());
        ASSERT_EQ(list_forwards(plan, index, first, last, dst, MoveSource::token, 0, by_token), idx(num_wanted));
        ASSERT_EQ(list_forwards(plan, index, first, last, dst, MoveSource::round, 0, by_place), idx(num_wanted));
        for (std::int32_t i = 0; i < num_wanted; ++i) {
          ASSERT_EQ(by_token[idx(i)].src, wanted.token[idx(wire + i)]) << src << " to " << dst;
          ASSERT_EQ(by_token[idx(i)].dst, by_token[idx(i)].src);
          ASSERT_EQ(by_place[idx(i)].src, wanted.table_row[idx(wire + i)]) << src << " to " << dst;
          ASSERT_EQ(by_place[idx(i)].dst, by_place[idx(i)].src);
        }
      }
    }
  });
}

TEST(RelayPlan, ForwardsARoundToThePlacesThatItsReceiverReads) {
  for_each_gateway([](const Case& c, const Plans& plans, int rank) {
    const RelayPlan& plan = plans.relay[idx(rank)].plan;
    const Shape& shape = plans.shapes[idx(rank)];
    constexpr std::int32_t kRoundRows = 4;
    for (int index = 0; index < plan.num_served(); ++index) {
      const int src = plan.served[idx(index)];
      const std::int32_t begin = plan.first_row[idx(index)];
      const std::int32_t num_rows = plan.first_row[idx(index) + 1] - begin;
      for (std::int32_t at = 0; at < num_rows; at += kRoundRows) {
        const std::int32_t end = std::min(at + kRoundRows, num_rows);
        for (const int dst : cases::neighbours_of(c, rank)) {
          std::vector<RowMove> moves(kRoundRows);
          moves.resize(list_forwards(plan, index, begin + at, begin + end, dst, MoveSource::round, at, moves));
          std::set<std::int32_t> filled;
          for (const RowMove& move : moves) filled.insert(move.dst);
          const ReceivePlan& receive = plans.receive[idx(dst)].plan;
          const RowRange rows = rows_of_round(receive, src, at, at + kRoundRows);
          ASSERT_EQ(filled.size(), idx(rows.last - rows.first));
          std::vector<RowMove> taken(idx((rows.last - rows.first) * max_copies(shape)));
          taken.resize(
              list_moves(plans.shapes[idx(dst)], receive, rows.first, rows.last, MoveSource::round, taken, at));
          for (const RowMove& move : taken) {
            ASSERT_TRUE(filled.contains(move.src)) << src << " to " << dst << ", place " << move.src << " from " << at;
          }
        }
      }
    }
  });
}

TEST(RelayPlan, FindsTheRowsOfTokensHoweverTheyAreCut) {
  for_each_gateway([](const Case& c, const Plans& plans, int rank) {
    const RelayPlan& plan = plans.relay[idx(rank)].plan;
    for (int index = 0; index < plan.num_served(); ++index) {
      std::int32_t next = plan.first_row[idx(index)];
      for (int token = 0; token < c.config.max_tokens_per_rank; token += 3) {
        const RowRange rows = relay_rows_of_tokens(plan, index, token, token + 3);
        ASSERT_EQ(rows.first, next);
        for (std::int32_t row = rows.first; row < rows.last; ++row) {
          ASSERT_GE(plan.token[idx(row)], token);
          ASSERT_LT(plan.token[idx(row)], token + 3);
        }
        next = rows.last;
      }
      ASSERT_EQ(next, plan.first_row[idx(index) + 1]);
    }
  });
}

TEST(RelayPlan, IsEmptyWhereRowsGoDirectly) {
  Case c = cases::random_case(3, Layout::rank_major);
  c.num_ranks = 4;
  c.node_of = {0, 0, 1, 1};
  c.choices.assign(4, {});
  c.config.inter_node = InterNode::direct;
  const Plans direct(c);
  EXPECT_TRUE(direct.relay[0].plan.served.empty());
  EXPECT_EQ(direct.relay[0].memory.size_bytes(), 0U);
  c.config.inter_node = InterNode::gateway;
  EXPECT_THAT(Plans(c).relay[0].plan.served, ElementsAre(2));
}

TEST(RelayPlan, NeedsNobodyForSeatsThatDoNotExist) {
  ExchangeConfig config;
  config.num_experts = 2;
  config.num_topk = 3;
  config.hidden = 1;
  config.max_tokens_per_rank = 1;
  const std::vector<int> node_of{0, 1};
  const Shape shape = make_shape(config, GroupFacts{Topology::of_nodes(node_of), 2, 1});
  const TableRowFormat format = table_row_format(3);
  std::vector<std::byte> table(format.stride_bytes);
  const std::int32_t ids[3] = {2, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()};
  std::memcpy(table.data() + format.ids_offset_bytes, ids, sizeof(ids));
  cases::Carved<RelayPlan> relay(shape);
  const std::vector<TableView> views{{table.data(), 1, false}, {}};
  plan_relay(shape, format, views, relay.plan);
  EXPECT_EQ(relay.plan.rank_set[0], 0U);
}

}  // namespace
}  // namespace moebus::model

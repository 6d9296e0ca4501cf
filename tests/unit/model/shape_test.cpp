#include "model/shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace moebus::model {
namespace {

ExchangeConfig good_config() {
  ExchangeConfig config;
  config.num_experts = 16;
  config.num_topk = 4;
  config.hidden = 64;
  config.max_tokens_per_rank = 32;
  return config;
}

struct WrongField {
  const char* name;
  std::function<void(ExchangeConfig&)> spoil;
  const char* message;
};

void PrintTo(const WrongField& field, std::ostream* out) { *out << field.name; }

std::string name_of(const testing::TestParamInfo<WrongField>& field) { return field.param.name; }

class ConfigError : public testing::TestWithParam<WrongField> {};

TEST_P(ConfigError, NamesFieldValueAndLimit) {
  ExchangeConfig config = good_config();
  ASSERT_EQ(find_config_error(config, 4), std::nullopt);
  GetParam().spoil(config);
  EXPECT_EQ(find_config_error(config, 4), GetParam().message);
}

#define MOEBUS_WRONG(name, change, message)          \
  WrongField {                                       \
    name, [](ExchangeConfig& c) { change; }, message \
  }

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    ConfigError,
    testing::Values(
        MOEBUS_WRONG("NoExperts", c.num_experts = 0, "config.num_experts is 0; allowed is 1 to 1048576"),
        MOEBUS_WRONG("NegativeExperts", c.num_experts = -3, "config.num_experts is -3; allowed is 1 to 1048576"),
        MOEBUS_WRONG("TooManyExperts",
                     c.num_experts = 1048577,
                     "config.num_experts is 1048577; allowed is 1 to 1048576"),
        MOEBUS_WRONG("NoTopk", c.num_topk = 0, "config.num_topk is 0; allowed is 1 to 64"),
        MOEBUS_WRONG("TooLargeTopk", c.num_topk = 65, "config.num_topk is 65; allowed is 1 to 64"),
        MOEBUS_WRONG("NoHidden", c.hidden = 0, "config.hidden is 0; allowed is 1 to 1048576"),
        MOEBUS_WRONG("TooWideHidden", c.hidden = 1048577, "config.hidden is 1048577; allowed is 1 to 1048576"),
        MOEBUS_WRONG("NoTokens",
                     c.max_tokens_per_rank = 0,
                     "config.max_tokens_per_rank is 0; allowed is 1 to 1073741823"),
        MOEBUS_WRONG("NegativeCombineHidden",
                     c.combine_hidden = -1,
                     "config.combine_hidden is -1; allowed is 0 to 1048576"),
        MOEBUS_WRONG("NoAlignment", c.expert_alignment = 0, "config.expert_alignment is 0; allowed is 1 to 65536"),
        MOEBUS_WRONG("TooLargeAlignment",
                     c.expert_alignment = 65537,
                     "config.expert_alignment is 65537; allowed is 1 to 65536"),
        MOEBUS_WRONG("NegativeCapacity",
                     c.capacity_rows = -1,
                     "config.capacity_rows is -1; allowed is 0 to 1073741823"),
        MOEBUS_WRONG("HugeCapacity",
                     c.capacity_rows = std::int64_t{1} << 40,
                     "config.capacity_rows is 1099511627776; allowed is 0 to 1073741823"),
        MOEBUS_WRONG("NoHandles", c.max_handles = 0, "config.max_handles is 0; allowed is 1 to 1024"),
        MOEBUS_WRONG("NegativeSeats", c.seats_per_rank = -1, "config.seats_per_rank is -1; allowed is 0 to 1048576"),
        MOEBUS_WRONG("TooFewSeats",
                     c.seats_per_rank = 3,
                     "config.seats_per_rank is 3; 4 ranks then hold 12 of 16 experts: give at least 4"),
        MOEBUS_WRONG("TooManySeats",
                     c.seats_per_rank = 262145,
                     "config.seats_per_rank is 262145; 4 ranks then have 1048580 seats, at most 1048576 are supported: "
                     "lower it"),
        MOEBUS_WRONG("NegativeContext", c.context = -1, "config.context is -1; allowed is 0 to 7"),
        MOEBUS_WRONG("TooHighContext", c.context = 8, "config.context is 8; allowed is 0 to 7"),
        MOEBUS_WRONG("NegativeSide", c.side_bytes[1] = -1, "config.side_bytes is -1; allowed is 0 to 1048576"),
        MOEBUS_WRONG("HugeSide", c.side_bytes[0] = 1048577, "config.side_bytes is 1048577; allowed is 0 to 1048576"),
        MOEBUS_WRONG(
            "TooManyRows",
            c.max_tokens_per_rank = 1 << 29,
            "config.max_tokens_per_rank 536870912 over 4 ranks gives results of up to 2147483648 rows; at most "
            "1073741823 are supported: lower it, or set capacity_rows")),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Combinations,
    ConfigError,
    testing::Values(
        MOEBUS_WRONG("CastOfFloat32",
                     (c.cast = Cast::fp8, c.scale_format = ScaleFormat::f32, c.dtype = DType::f32),
                     "config.dtype is f32 with cast fp8; the cast takes bf16 rows: give bf16, or cast none"),
        MOEBUS_WRONG("CastWithoutScales",
                     c.cast = Cast::fp8,
                     "config.scale_format is none with cast fp8; choose f32 or ue8m0"),
        MOEBUS_WRONG("SumOfFp8",
                     c.combine_dtype = DType::e4m3,
                     "config.combine_dtype is e4m3; combine adds bf16, f16 or f32"),
        MOEBUS_WRONG("SecondSideAlone",
                     c.side_bytes[1] = 4,
                     "config.side_bytes[1] is set and side_bytes[0] is not; fill side tensors from the first on"),
        MOEBUS_WRONG(
            "AlignmentWithoutGroups",
            c.expert_alignment = 8,
            "config.expert_alignment is 8 with layout rank_major; only expert_major has groups to align: use 1"),
        MOEBUS_WRONG("PerExpertOfRankMajor",
                     c.combine_rows = CombineRows::per_expert,
                     "config.combine_rows is per_expert with layout rank_major, whose rows are already summed over the "
                     "local experts: use per_rank, or an expert layout"),
        MOEBUS_WRONG("CallerResultsDirect",
                     (c.caller_results = true, c.path = Path::throughput),
                     "config.caller_results is set with direct delivery, whose result is the registered region: use "
                     "staged delivery"),
        // One combined row of 64 bf16 is 128 bytes; 4 slots a token, two halves.
        MOEBUS_WRONG("StageSmallerThanACombineRound",
                     (c.path = Path::throughput, c.stage_bytes = 1023),
                     "config.stage_bytes is 1023; one row a round needs at least 1024"),
        MOEBUS_WRONG(
            "StageSmallerThanADispatchRound",
            (c.path = Path::throughput, c.delivery = Delivery::staged, c.side_bytes[0] = 100, c.stage_bytes = 2047),
            "config.stage_bytes is 2047; one row a round needs at least 2048")),
    name_of);

#undef MOEBUS_WRONG

TEST(Shape, TakesTheWorstCaseAsCapacityWhenNoneIsGiven) {
  ExchangeConfig config = good_config();
  EXPECT_EQ(make_shape(config, 4).capacity_rows, 4 * 32);
  EXPECT_FALSE(make_shape(config, 4).can_overflow);
  config.layout = Layout::expert_padded;
  EXPECT_EQ(make_shape(config, 4).capacity_rows, 4 * 32);
  EXPECT_EQ(make_shape(config, 4).result_rows, 4 * 32 * 4);
  config.layout = Layout::expert_major;
  config.expert_alignment = 8;
  // 4 x 32 tokens with min(4 choices, 4 experts) copies, and 7 rows of padding in each of 4 groups: 540, on 8.
  EXPECT_EQ(make_shape(config, 4).capacity_rows, 544);
}

TEST(Shape, CanOverflowOnlyBelowTheWorstCase) {
  ExchangeConfig config = good_config();
  config.capacity_rows = 4 * 32 - 1;
  EXPECT_TRUE(make_shape(config, 4).can_overflow);
  EXPECT_EQ(make_shape(config, 4).combine_row.mask_bytes, 8U);
  config.capacity_rows = 4 * 32;
  EXPECT_FALSE(make_shape(config, 4).can_overflow);
  EXPECT_EQ(make_shape(config, 4).combine_row.mask_bytes, 0U);
}

TEST(Shape, GivesATokenAsManyHomeSlotsAsRanksOrChoicesCanAnswer) {
  ExchangeConfig config = good_config();
  EXPECT_EQ(make_shape(config, 2).combine_slots_per_token, 2);
  EXPECT_EQ(make_shape(config, 8).combine_slots_per_token, 4);
  config.layout = Layout::expert_major;
  config.combine_rows = CombineRows::per_expert;
  EXPECT_EQ(make_shape(config, 2).combine_slots_per_token, 4);
}

TEST(Shape, HasADigestThatTellsEveryFieldAndTheNumberOfRanks) {
  const auto digest = make_shape(good_config(), 4).digest;
  EXPECT_EQ(make_shape(good_config(), 4).digest, digest);
  EXPECT_NE(make_shape(good_config(), 3).digest, digest);
  ExchangeConfig config = good_config();
  config.combine_lane = true;
  EXPECT_NE(make_shape(config, 4).digest, digest);
}

// Groups of several nodes
// ----------------------------------------------------------------------------------------------------------------------

GroupFacts facts(const std::vector<int>& node_of, int levels = 2, int rank = 0) {
  return {Topology::of_nodes(node_of), levels, rank};
}

TEST(Shape, HasGatewaysOnlyWithTwoLevelsTwoNodesAndAWishForThem) {
  ExchangeConfig config = good_config();
  EXPECT_TRUE(make_shape(config, facts({0, 0, 1, 1})).has_gateways);
  EXPECT_TRUE(make_shape(config, facts({0, 0, 1, 1})).has_partial_sums);
  EXPECT_FALSE(make_shape(config, facts({0, 0, 1, 1}, 1)).has_gateways);
  EXPECT_FALSE(make_shape(config, facts({0, 0, 0, 0})).has_gateways);
  config.layout = Layout::expert_major;
  config.combine_rows = CombineRows::per_expert;
  EXPECT_TRUE(make_shape(config, facts({0, 0, 1, 1})).has_gateways);
  EXPECT_FALSE(make_shape(config, facts({0, 0, 1, 1})).has_partial_sums);
  config.inter_node = InterNode::direct;
  EXPECT_FALSE(make_shape(config, facts({0, 0, 1, 1})).has_gateways);
}

TEST(Shape, SendsToOwnersOnItsNodeAndToTheGatewayOfEveryOther) {
  const auto shape = make_shape(good_config(), facts({0, 1, 0, 1}, 2, 2));  // seen from rank 2; 4 seats a rank
  for (int seat = 0; seat < 16; ++seat) {
    const int owner = seat / 4;
    const int hop = owner == 0 ? 0 : owner == 2 ? 2 : 3;  // rank 3 has rank 2's local index
    const std::size_t at = base::idx(seat) + 1;
    EXPECT_EQ(shape.owner[at], owner) << "seat " << seat;
    EXPECT_EQ(shape.hop[at], hop) << "seat " << seat;
    EXPECT_EQ(shape.hop_bit[at], std::uint64_t{1} << hop) << "seat " << seat;
  }
  EXPECT_EQ(shape.hop_bit[0], 0U);
  EXPECT_TRUE(shape.is_relayed(2, 3));
  EXPECT_TRUE(shape.is_relayed(2, 1));
  EXPECT_FALSE(shape.is_relayed(2, 0));
}

TEST(Shape, GivesATokenAsManyRelaySlotsAsTheLargestNodeOrItsChoicesCanFill) {
  ExchangeConfig config = good_config();
  EXPECT_EQ(make_shape(config, facts({0, 0, 0, 1})).relay_slots_per_token, 3);
  EXPECT_EQ(make_shape(config, facts({0, 0, 0, 0, 0, 0, 1})).relay_slots_per_token, 4);
  EXPECT_EQ(make_shape(config, 4).relay_slots_per_token, 0);
  config.inter_node = InterNode::direct;
  EXPECT_EQ(make_shape(config, facts({0, 0, 0, 1})).relay_slots_per_token, 0);
}

TEST(Shape, HasMasksWhereLanesAreMergedAtTwoLevels) {
  ExchangeConfig config = good_config();
  config.combine_lane = true;
  EXPECT_EQ(make_shape(config, facts({0, 0, 1, 1}, 1)).combine_row.mask_bytes, 0U);
  EXPECT_EQ(make_shape(config, facts({0, 0, 1, 1}, 2)).combine_row.mask_bytes, 8U);
  config.combine_lane = false;
  EXPECT_EQ(make_shape(config, facts({0, 0, 1, 1}, 2)).combine_row.mask_bytes, 0U);
}

TEST(Arrival, IsStraightOnTheLatencyPathWhoeverForwards) {
  const auto shape = make_shape(good_config(), facts({0, 0, 1, 1}));
  for (int src = 0; src < 4; ++src) EXPECT_EQ(shape.arrival_from(src), Arrival::straight) << src;
  EXPECT_FALSE(shape.has_dispatch_rounds());
}

TEST(Arrival, IsInRoundsFromSourcesThatCannotWriteHereOrAreForwarded) {
  ExchangeConfig config = good_config();
  config.path = Path::throughput;
  EXPECT_FALSE(make_shape(config, 4).has_dispatch_rounds());
  GroupFacts group = facts({0, 0, 0, 1});
  group.topology.set_unmapped(0, 2);
  const auto shape = make_shape(config, group);
  EXPECT_EQ(shape.arrival_from(0), Arrival::straight);
  EXPECT_EQ(shape.arrival_from(1), Arrival::straight);
  EXPECT_EQ(shape.arrival_from(2), Arrival::rounds);  // not mapped
  EXPECT_EQ(shape.arrival_from(3), Arrival::rounds);  // relayed
  // Rank 1 maps its node, yet has the same stage as the others.
  group.rank = 1;
  EXPECT_TRUE(make_shape(config, group).has_dispatch_rounds());
  config.delivery = Delivery::staged;
  const auto staged = make_shape(config, group);
  EXPECT_EQ(staged.arrival_from(1), Arrival::straight);
  EXPECT_EQ(staged.arrival_from(0), Arrival::rounds);
}

TEST(ConfigErrorOfAGroup, CountsDispatchRoundsAndRelaySlotsIntoTheLeastStage) {
  ExchangeConfig config = good_config();
  config.path = Path::throughput;
  config.side_bytes[0] = 100;  // a dispatched row is 128 + 128 bytes, a combined one 128
  // Combine alone: 2 halves of 4 slots. Rounds of dispatch: 2 halves of 4 ranks.
  config.stage_bytes = 1024;
  EXPECT_EQ(find_config_error(config, 4), std::nullopt);
  GroupFacts group = facts({0, 0, 0, 0}, 1);
  group.topology.set_unmapped(0, 1);
  EXPECT_EQ(find_config_error(config, group), "config.stage_bytes is 1024; one row a round needs at least 2048");
  // Rank 3 serves three ranks and has three slots for each, beside its own four.
  config.stage_bytes = 3327;
  EXPECT_EQ(find_config_error(config, facts({0, 0, 0, 1})),
            "config.stage_bytes is 3327; one row a round needs at least 3328");
}

// Seats
// ----------------------------------------------------------------------------------------------------------------------

TEST(Shape, HasAsManySeatsOnEveryRankAndExpertsInOrderUntilAPlacementIsSet) {
  ExchangeConfig config = good_config();
  config.num_experts = 5;
  config.seats_per_rank = 2;
  config.layout = Layout::expert_padded;
  Shape shape = make_shape(config, 4);
  EXPECT_EQ(shape.num_seats, 8);
  EXPECT_EQ(shape.max_local_experts, 2);
  EXPECT_EQ(shape.result_rows, 2 * 4 * 32);
  EXPECT_TRUE(shape.placement.is_identity());
  EXPECT_EQ(shape.owner[4 + 1], 2);
  EXPECT_EQ(shape.owner[7 + 1], 3);
  const auto owner = shape.owner;
  set_placement(shape, {{4, 0, 3, 1, 2, 0, -1, 4}});
  EXPECT_FALSE(shape.placement.is_identity());
  EXPECT_THAT(shape.placement.replicas(0), testing::ElementsAre(1, 5));
  EXPECT_THAT(shape.placement.replicas(4), testing::ElementsAre(0, 7));
  EXPECT_EQ(shape.owner, owner);
  EXPECT_EQ(shape.num_seats, 8);
  set_placement(shape, {{0, 1, 2, 3, 4, -1, -1, -1}});
  EXPECT_TRUE(shape.placement.is_identity());
}

TEST(Shape, TakesThePlacementThatItIsMadeWith) {
  ExchangeConfig config = good_config();
  config.num_experts = 2;
  config.seats_per_rank = 1;
  const Placement placement{{1, 0, 0, 1}};
  const Shape shape = make_shape(config, GroupFacts::one_node(4), &placement);
  EXPECT_THAT(shape.placement.replicas(1), testing::ElementsAre(0, 3));
}

// Digests
// ----------------------------------------------------------------------------------------------------------------------

TEST(Digest, IsTheSameOnAllRanksAndTellsNodesLevelsAndMapping) {
  const ExchangeConfig config = good_config();
  const auto shape = make_shape(config, facts({0, 0, 1, 1}));
  EXPECT_EQ(make_shape(config, facts({0, 0, 1, 1}, 2, 3)).digest, shape.digest);
  EXPECT_EQ(make_shape(config, facts({0, 0, 1, 1}, 2, 3)).plan_digest, shape.plan_digest);
  GroupFacts unmapped = facts({0, 0, 1, 1});
  unmapped.topology.set_unmapped(0, 3);
  for (const GroupFacts& other : {facts({0, 0, 1, 1}, 1), facts({0, 1, 0, 1}), unmapped}) {
    EXPECT_NE(make_shape(config, other).digest, shape.digest);
    EXPECT_NE(make_shape(config, other).plan_digest, shape.plan_digest);
  }
}

TEST(Digest, OfPlansLooksAwayFromRowsAndTheirWay) {
  const auto digest = make_shape(good_config(), 4).plan_digest;
  const std::vector<std::function<void(ExchangeConfig&)>> rows{
      [](ExchangeConfig& c) { c.hidden = 128; },
      [](ExchangeConfig& c) { c.dtype = DType::f32; },
      [](ExchangeConfig& c) { c.side_bytes[0] = 8; },
      [](ExchangeConfig& c) { c.combine_hidden = 32; },
      [](ExchangeConfig& c) { c.combine_dtype = DType::f32; },
      [](ExchangeConfig& c) { c.combine_lane = true; },
      [](ExchangeConfig& c) { c.path = Path::throughput; },
      [](ExchangeConfig& c) { c.delivery = Delivery::staged; },
      [](ExchangeConfig& c) { c.context = 3; },
      [](ExchangeConfig& c) { c.max_handles = 9; },
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ExchangeConfig config = good_config();
    rows[i](config);
    EXPECT_EQ(make_shape(config, 4).plan_digest, digest) << "change " << i;
  }
}

TEST(Digest, OfPlansTellsWhatDecidesWhereRowsGo) {
  const auto digest = make_shape(good_config(), 4).plan_digest;
  const std::vector<std::function<void(ExchangeConfig&)>> changes{
      [](ExchangeConfig& c) { c.num_experts = 17; },
      [](ExchangeConfig& c) { c.num_topk = 5; },
      [](ExchangeConfig& c) { c.max_tokens_per_rank = 33; },
      [](ExchangeConfig& c) { c.layout = Layout::expert_major; },
      [](ExchangeConfig& c) { c.expert_alignment = 2; },
      [](ExchangeConfig& c) { c.capacity_rows = 5; },
      [](ExchangeConfig& c) { c.seats_per_rank = 4; },
      [](ExchangeConfig& c) { c.inter_node = InterNode::direct; },
      [](ExchangeConfig& c) { c.combine_rows = CombineRows::per_expert; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    ExchangeConfig config = good_config();
    changes[i](config);
    EXPECT_NE(make_shape(config, 4).plan_digest, digest) << "change " << i;
  }
}

TEST(Description, ListsWhatRanksMustAgreeOn) {
  ExchangeConfig config = good_config();
  config.capacity_rows = 77;
  const std::string text = describe(config);
  EXPECT_THAT(text, testing::HasSubstr("num_experts=16\n"));
  EXPECT_THAT(text, testing::HasSubstr("capacity_rows=77\n"));
  EXPECT_THAT(text, testing::HasSubstr("layout=rank_major\n"));
  EXPECT_THAT(text, testing::HasSubstr("combine_lane=false\n"));
  EXPECT_THAT(text, testing::HasSubstr("seats_per_rank=0\n"));
  EXPECT_THAT(text, testing::HasSubstr("inter_node=gateway\n"));
  EXPECT_THAT(text, testing::HasSubstr("context=0\n"));
}

}  // namespace
}  // namespace moebus::model

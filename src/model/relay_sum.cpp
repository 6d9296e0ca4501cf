#include <array>
#include <bit>
#include <cstring>

#include "model/combine_tail.hpp"
#include "model/relay_plan.hpp"

namespace moebus::model {

using base::idx;

namespace {

/// Number of slots that a relay row has at the gateway: one per rank of the node that sends for it.
int num_relay_slots(const RelayPlan& plan, std::int32_t row) noexcept { return std::popcount(plan.rank_set[idx(row)]); }

/// Returns the lowest `num` bits, 0 to 64.
std::uint64_t low_bits(std::size_t num) noexcept { return num == 0 ? 0 : ~std::uint64_t{0} >> (64 - num); }

const std::byte* relay_slot(
    const Shape& shape, const RelayPlan& plan, std::int32_t row, int place, const HomeSlots& relay_slots) noexcept {
  return row_at(shape.combine_row, relay_slots.data, relay_slots.index(place, plan.token[idx(row)]));
}

}  // namespace

void list_relay_slots(const RelayPlan& plan,
                      RowRange rows,
                      const HomeSlots& home,
                      std::span<std::int32_t> slot) noexcept {
  for (std::int32_t row = rows.first; row < rows.last; ++row) {
    slot[idx(row - rows.first)] = static_cast<std::int32_t>(home.index(plan.home_slot[idx(row)], plan.token[idx(row)]));
  }
}

void list_relay_sums(const Shape& shape,
                     const RelayPlan& plan,
                     RowRange rows,
                     const HomeSlots& relay_slots,
                     std::byte* data,
                     std::span<const std::int32_t> at,
                     SumTerms& terms) noexcept {
  std::int32_t num = 0;
  for (std::int32_t row = rows.first; row < rows.last; ++row) {
    const std::size_t output = idx(row - rows.first);
    terms.first[output] = num;
    terms.output_row[output] = row_at(shape.combine_row, data, place_of(at, output));
    for (int place = 0; place < num_relay_slots(plan, row); ++place) {
      const std::byte* slot = relay_slot(shape, plan, row, place, relay_slots);
      if (read_mask(shape.combine_row, slot) != 0) terms.term[idx(num++)] = slot;
    }
  }
  terms.first[idx(rows.last - rows.first)] = num;
}

void write_relay_tails(const Shape& shape,
                       const RelayPlan& plan,
                       RowRange rows,
                       bool has_lane,
                       const HomeSlots& relay_slots,
                       std::byte* data,
                       std::span<const std::int32_t> at) noexcept {
  const CombineRowFormat& format = shape.combine_row;
  // Without a mask nobody could tell whose lane value counts, so formats of two levels with a lane have one.
  if (format.mask_bytes == 0) return;
  // Masks come from other ranks; bits of choices that a lane does not have would be read behind it.
  const std::uint64_t choices = low_bits(format.lane_bytes / sizeof(float));
  std::array<float, kMaxTopk> values;
  for (std::int32_t row = rows.first; row < rows.last; ++row) {
    std::uint64_t mask = 0;
    values.fill(0.0F);
    for (int place = 0; place < num_relay_slots(plan, row); ++place) {
      const std::byte* slot = relay_slot(shape, plan, row, place, relay_slots);
      const std::uint64_t kept = read_mask(format, slot);
      mask |= kept;
      for (std::uint64_t rest = has_lane ? kept & choices : 0; rest != 0; rest &= rest - 1) {
        const auto choice = static_cast<std::size_t>(std::countr_zero(rest));
        values[choice] = read_lane(format, slot, choice);
      }
    }
    const std::int64_t place = place_of(at, idx(row - rows.first));
    write_tail(format, row_at(format, data, place), has_lane ? values.data() : nullptr, mask);
  }
}

}  // namespace moebus::model

#include "model/combine_plan.hpp"

#include <algorithm>
#include <cstring>

namespace moebus::model {

using base::idx;

namespace {

bool is_per_expert(const Shape& shape) noexcept { return shape.config.combine_rows == CombineRows::per_expert; }

bool is_rank_major(const Shape& shape) noexcept { return shape.config.layout == Layout::rank_major; }

/// True if choice k of wire row `row` is kept here.
bool is_kept(const Shape& shape, const ReceivePlan& plan, std::int32_t row, std::size_t k) noexcept {
  const std::size_t at = idx(row) * idx(shape.config.num_topk) + k;
  if (is_rank_major(shape)) return plan.choice[at] >= 0 && row < plan.num_rows;
  return plan.position[at] >= 0;
}

/// True if choice k names an expert that an earlier choice of the row names too.
bool is_repeated(const std::int32_t* choices, std::size_t k) noexcept {
  return std::find(choices, choices + k, choices[k]) != choices + k;
}

std::int64_t result_row(const Shape& shape, const ReceivePlan& plan, std::int32_t row, std::size_t k) noexcept {
  return is_rank_major(shape) ? row : plan.position[idx(row) * idx(shape.config.num_topk) + k];
}

std::uint64_t kept_mask(const Shape& shape, const ReceivePlan& plan, std::int32_t row) noexcept {
  std::uint64_t mask = 0;
  for (std::size_t k = 0; k < idx(shape.config.num_topk); ++k) {
    if (is_kept(shape, plan, row, k)) mask |= std::uint64_t{1} << k;
  }
  return mask;
}

void write_tail(const CombineRowFormat& format, std::byte* slot, const float* lane, std::uint64_t mask) noexcept {
  if (lane != nullptr) std::memcpy(slot + format.lane_offset_bytes, lane, format.lane_bytes);
  if (format.mask_bytes > 0) std::memcpy(slot + format.mask_offset_bytes, &mask, sizeof(mask));
}

std::uint64_t read_mask(const CombineRowFormat& format, const std::byte* slot) noexcept {
  std::uint64_t mask = ~std::uint64_t{0};
  if (format.mask_bytes > 0) std::memcpy(&mask, slot + format.mask_offset_bytes, sizeof(mask));
  return mask;
}

}  // namespace

float LaneView::at(std::int64_t row, std::size_t choice) const noexcept {
  float value;
  std::memcpy(&value, data + row * row_stride_bytes + choice * sizeof(float), sizeof(value));
  return value;
}

RowRange rows_of_tokens(const ReceivePlan& plan, int src, std::int64_t first_token, std::int64_t last_token) noexcept {
  const auto begin = plan.token.begin() + plan.first_row[idx(src)];
  const auto end = plan.token.begin() + plan.first_row[idx(src) + 1];
  const auto first = std::lower_bound(begin, end, first_token);
  const auto last = std::lower_bound(first, end, last_token);
  return {static_cast<std::int32_t>(first - plan.token.begin()), static_cast<std::int32_t>(last - plan.token.begin())};
}

void list_owner_sums(const Shape& shape,
                     const ReceivePlan& plan,
                     RowRange rows,
                     const RowsView& results,
                     const float* home_weights,
                     const HomeSlots& slots,
                     SumTerms& terms) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  std::int32_t num = 0;
  std::size_t output = 0;
  for (std::int32_t row = rows.first; row < rows.last; ++row) {
    const std::size_t token = idx(plan.token[idx(row)]);
    const float* weight = home_weights != nullptr ? home_weights + token * topk : plan.weight.data() + idx(row) * topk;
    terms.first[output] = num;
    for (std::size_t k = 0; k < topk; ++k) {
      const std::int32_t position = plan.position[idx(row) * topk + k];
      if (position < 0) continue;
      terms.term[idx(num)] = results.row(position);
      terms.weight[idx(num)] = weight[k];
      ++num;
    }
    const std::int64_t slot = slots.index(plan.home_slot[idx(row)], plan.token[idx(row)]);
    terms.output_row[output++] = slots.data + slot * static_cast<std::int64_t>(shape.combine_row.stride_bytes);
  }
  terms.first[output] = num;
}

std::size_t list_owner_moves(const Shape& shape,
                             const ReceivePlan& plan,
                             RowRange rows,
                             const HomeSlots& slots,
                             std::span<RowMove> moves) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  std::size_t num = 0;
  for (std::int32_t row = rows.first; row < rows.last; ++row) {
    const std::int32_t token = plan.token[idx(row)];
    if (is_rank_major(shape)) {
      if (row < plan.num_rows) {
        moves[num++] = {row, static_cast<std::int32_t>(slots.index(plan.home_slot[idx(row)], token))};
      }
      continue;
    }
    const std::int32_t* position = plan.position.data() + idx(row) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      if (position[k] < 0 || is_repeated(position, k)) continue;
      moves[num++] = {position[k], static_cast<std::int32_t>(slots.index(static_cast<std::int64_t>(k), token))};
    }
  }
  return num;
}

void write_tails(
    const Shape& shape, const ReceivePlan& plan, RowRange rows, const LaneView& lane, const HomeSlots& slots) noexcept {
  const CombineRowFormat& format = shape.combine_row;
  if (format.mask_bytes == 0 && lane.data == nullptr) return;
  const std::size_t topk = idx(shape.config.num_topk);
  const auto stride = static_cast<std::int64_t>(format.stride_bytes);
  std::array<float, kMaxTopk> values;
  for (std::int32_t row = rows.first; row < rows.last; ++row) {
    const std::int32_t token = plan.token[idx(row)];
    const std::uint64_t mask = kept_mask(shape, plan, row);
    for (std::size_t k = 0; k < topk; ++k) {
      const bool has_lane = lane.data != nullptr && ((mask >> k) & 1) != 0;
      values[k] = has_lane ? lane.at(result_row(shape, plan, row, k), k) : 0.0F;
    }
    const float* tail = lane.data != nullptr ? values.data() : nullptr;
    if (!is_per_expert(shape)) {
      write_tail(format, slots.data + slots.index(plan.home_slot[idx(row)], token) * stride, tail, mask);
      continue;
    }
    // Every chosen expert here has a slot of its own at home, kept or not.
    const std::int32_t* choice = plan.choice.data() + idx(row) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      if (choice[k] < 0 || is_repeated(choice, k)) continue;
      write_tail(format, slots.data + slots.index(static_cast<std::int64_t>(k), token) * stride, tail, mask);
    }
  }
}

namespace {

/// What home knows of one of its tokens.
struct HomeToken {
  std::int64_t token;
  const std::int32_t* ids;    // [K]
  const std::uint8_t* ranks;  // [num_ranks]
  std::size_t num_ranks;
  std::int32_t own_row;
};

HomeToken home_token(const Shape& shape,
                     const SendPlan& send,
                     const ReceivePlan& receive,
                     std::int64_t token) noexcept {
  return {token,
          send.ids.data() + idx(token) * idx(shape.config.num_topk),
          send.ranks.data() + idx(token) * idx(max_ranks_per_token(shape)),
          send.num_ranks[idx(token)],
          receive.own_row[idx(token)]};
}

/// Returns the slot of choice k with per_expert rows: that of the expert's first mention.
std::size_t slot_of_choice(const std::int32_t* ids, std::size_t k) noexcept {
  return static_cast<std::size_t>(std::find(ids, ids + k, ids[k]) - ids);
}

void add_rank_terms(const Shape& shape,
                    const ReceivePlan& receive,
                    int rank,
                    const HomeToken& home,
                    const RowsView& results,
                    const HomeSlots& slots,
                    SumTerms& terms,
                    std::int32_t& num) noexcept {
  for (std::size_t j = 0; j < home.num_ranks; ++j) {
    if (home.ranks[j] == rank && is_rank_major(shape)) {
      if (home.own_row < receive.num_rows) terms.term[idx(num++)] = results.row(home.own_row);
      continue;
    }
    const std::byte* slot = slots.data + slots.index(static_cast<std::int64_t>(j), home.token) *
                                             static_cast<std::int64_t>(shape.combine_row.stride_bytes);
    if (read_mask(shape.combine_row, slot) != 0) terms.term[idx(num++)] = slot;
  }
}

void add_expert_terms(const Shape& shape,
                      const ReceivePlan& receive,
                      int rank,
                      const HomeToken& home,
                      const RowsView& results,
                      const float* weights,
                      const HomeSlots& slots,
                      SumTerms& terms,
                      std::int32_t& num) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::size_t k = 0; k < topk; ++k) {
    const std::int32_t id = home.ids[k];
    if (id < 0) continue;
    const std::byte* term = nullptr;
    if (shape.owner[idx(id) + 1] == rank) {
      const std::int32_t position = receive.position[idx(home.own_row) * topk + k];
      if (position >= 0) term = results.row(position);
    } else {
      const std::byte* slot =
          slots.data + slots.index(static_cast<std::int64_t>(slot_of_choice(home.ids, k)), home.token) *
                           static_cast<std::int64_t>(shape.combine_row.stride_bytes);
      if (((read_mask(shape.combine_row, slot) >> k) & 1) != 0) term = slot;
    }
    if (term == nullptr) continue;
    terms.term[idx(num)] = term;
    terms.weight[idx(num)] = weights != nullptr ? weights[idx(home.token) * topk + k] : 0.0F;
    ++num;
  }
}

}  // namespace

void list_home_sums(const Shape& shape,
                    const SendPlan& send,
                    const ReceivePlan& receive,
                    int rank,
                    std::int64_t first_token,
                    std::int64_t last_token,
                    const RowsView& results,
                    const float* weights,
                    const HomeSlots& slots,
                    SumTerms& terms) noexcept {
  std::int32_t num = 0;
  for (std::int64_t token = first_token; token < last_token; ++token) {
    terms.first[idx(token - first_token)] = num;
    const HomeToken home = home_token(shape, send, receive, token);
    if (is_per_expert(shape)) {
      add_expert_terms(shape, receive, rank, home, results, weights, slots, terms, num);
    } else {
      add_rank_terms(shape, receive, rank, home, results, slots, terms, num);
    }
  }
  terms.first[idx(last_token - first_token)] = num;
}

std::int64_t read_tails(const Shape& shape,
                        const SendPlan& send,
                        const ReceivePlan& receive,
                        int rank,
                        std::int64_t first_token,
                        std::int64_t last_token,
                        const LaneView& lane,
                        const HomeSlots& slots,
                        float* lane_out,
                        std::uint64_t* missing) noexcept {
  const CombineRowFormat& format = shape.combine_row;
  const std::size_t topk = idx(shape.config.num_topk);
  std::int64_t num_incomplete = 0;
  for (std::int64_t token = first_token; token < last_token; ++token) {
    const HomeToken home = home_token(shape, send, receive, token);
    std::uint64_t missing_here = 0;
    for (std::size_t k = 0; k < topk; ++k) {
      float value = 0.0F;
      bool has_row = home.ids[k] >= 0;
      if (has_row) {
        const int owner = shape.owner[idx(home.ids[k]) + 1];
        if (owner == rank) {
          has_row = is_kept(shape, receive, home.own_row, k);
          if (has_row && lane.data != nullptr) value = lane.at(result_row(shape, receive, home.own_row, k), k);
        } else {
          const auto ranks_end = home.ranks + home.num_ranks;
          const std::size_t slot_index =
              is_per_expert(shape) ? slot_of_choice(home.ids, k)
                                   : static_cast<std::size_t>(std::find(home.ranks, ranks_end, owner) - home.ranks);
          const std::byte* slot = slots.data + slots.index(static_cast<std::int64_t>(slot_index), token) *
                                                   static_cast<std::int64_t>(format.stride_bytes);
          has_row = ((read_mask(format, slot) >> k) & 1) != 0;
          if (has_row && lane_out != nullptr) {
            std::memcpy(&value, slot + format.lane_offset_bytes + k * sizeof(float), sizeof(value));
          }
        }
        if (!has_row) missing_here |= std::uint64_t{1} << k;
      }
      if (lane_out != nullptr) lane_out[idx(token) * topk + k] = value;
    }
    if (missing != nullptr) missing[idx(token)] = missing_here;
    num_incomplete += missing_here != 0 ? 1 : 0;
  }
  return num_incomplete;
}

}  // namespace moebus::model

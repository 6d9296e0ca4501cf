#include "model/gradient_plan.hpp"

#include <algorithm>

namespace moebus::model {

using base::idx;

void GradientRows::carve(base::Carver& carver, std::size_t most_rows) noexcept {
  choices = carver.take<std::uint64_t>(most_rows);
  row = carver.take<std::int32_t>(most_rows);
  dot = carver.take<float>(most_rows);
  scaled = carver.take<std::int32_t>(most_rows);
  factor = carver.take<float>(most_rows);
}

void list_gradient_rows(
    const Shape& shape, const ReceivePlan& plan, RowRange rows, bool is_weighted, GradientRows& gradients) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  gradients.num = 0;
  gradients.num_scaled = 0;
  for (std::int32_t wire_row = rows.first; wire_row < rows.last; ++wire_row) {
    const std::int32_t* position = plan.position.data() + idx(wire_row) * topk;
    const float* weight = plan.weight.data() + idx(wire_row) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      if (position[k] < 0 || std::find(position, position + k, position[k]) != position + k) continue;
      std::uint64_t choices = 0;
      float factor = 0.0F;
      for (std::size_t later = k; later < topk; ++later) {
        if (position[later] != position[k]) continue;
        choices |= std::uint64_t{1} << later;
        factor += is_weighted ? weight[later] : 1.0F;
      }
      gradients.row[gradients.num] = position[k];
      gradients.choices[gradients.num++] = choices;
      if (!is_weighted && factor == 1.0F) continue;
      gradients.scaled[gradients.num_scaled] = position[k];
      gradients.factor[gradients.num_scaled++] = factor;
    }
  }
}

std::int64_t lane_rows(const Shape& shape, const ReceivePlan& plan) noexcept {
  if (shape.config.layout != Layout::expert_padded) return plan.num_rows;
  return shape.placement.num_local(shape.rank) * shape.capacity_rows;
}

void write_gradient_lane(const Shape& shape, const GradientRows& gradients, float* lane) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::size_t i = 0; i < gradients.num; ++i) {
    float* const values = lane + idx(gradients.row[i]) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      values[k] = (gradients.choices[i] >> k & 1) != 0 ? gradients.dot[i] : 0.0F;
    }
  }
}

void drop_repeated_terms(SumTerms& terms, std::int64_t num_outputs) noexcept {
  for (std::int64_t output = 0; output < num_outputs; ++output) {
    const auto begin = terms.term.begin() + terms.first[idx(output)];
    const auto end = terms.term.begin() + terms.first[idx(output) + 1];
    for (auto term = begin; term != end; ++term) {
      if (std::find(begin, term, *term) != term) *term = nullptr;
    }
  }
}

}  // namespace moebus::model

#include "model/device_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace moebus::model {

using base::idx;

namespace {

std::uint32_t words_of(std::size_t bytes) noexcept {
  return static_cast<std::uint32_t>(base::ceil_div(bytes, kWideBytes));
}

void fill_row_parts(const DispatchRowFormat& format, DeviceShape& device) noexcept {
  const std::array<std::size_t, kNumRowParts> bytes{
      format.payload_bytes, format.scales_bytes, format.side_bytes[0], format.side_bytes[1]};
  std::uint32_t word = 0;
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    device.part[p] = {static_cast<std::uint32_t>(bytes[p]), word, words_of(bytes[p])};
    word += device.part[p].num_words;
  }
  device.row_words = word;
  // What our cast makes is never all ones: 0xFF is no code of it, nor are four scales as they travel.
  const bool is_closed = format.cast == Cast::fp8 && format.side_bytes[0] == 0 && format.side_bytes[1] == 0;
  device.escape_words = is_closed ? 0 : base::ceil_div(word, 32U);
}

void fill_offsets(DeviceShape& device) noexcept {
  const std::uint64_t sources = std::uint64_t(device.num_ranks) * std::uint64_t(device.max_tokens);
  const std::uint64_t slots = std::uint64_t(device.slots_per_token) * std::uint64_t(device.max_tokens);
  std::uint64_t end = 0;
  const auto take = [&](std::uint64_t wide_words) {
    const std::uint64_t offset = end;
    end = base::align_up(end + wide_words * kWideBytes, std::uint64_t{128});
    return offset;
  };
  device.headers_offset = take(std::uint64_t(device.num_ranks));
  device.tables_offset = take(sources * device.table.num_wide);
  device.weights_offset = take(sources * device.weight_words);
  device.escapes_offset = take(sources * device.escape_words);
  device.tails_offset = take(device.can_overflow ? slots : 0);
  device.rows_offset = take(std::max(sources * device.row_words, slots * device.combine_words));
  device.parity_bytes = end;
}

}  // namespace

TableFormat table_format(int num_topk, int max_local_experts, int slots_per_token) noexcept {
  const auto most = static_cast<std::uint32_t>(std::max(max_local_experts, slots_per_token));
  TableFormat format;
  format.bits = static_cast<std::uint32_t>(std::bit_width(most));
  format.fields_per_word = 32 / format.bits;
  format.num_wide = base::ceil_div(static_cast<std::uint32_t>(1 + num_topk), format.fields_per_word * kTableWords);
  return format;
}

std::size_t plan_bytes(const DeviceShape& shape) noexcept {
  const std::size_t rows = shape.layout == Layout::rank_major ? 1 : idx(shape.max_local_experts);
  const std::size_t maps = rows * idx(map_words(shape)) * (sizeof(std::uint32_t) + sizeof(std::uint16_t));
  return maps + idx(shape.max_tokens) * idx(shape.num_topk) * sizeof(std::uint16_t);
}

DeviceShape device_shape(const Shape& shape) noexcept {
  const ExchangeConfig& config = shape.config;
  DeviceShape device;
  device.num_ranks = shape.num_ranks;
  device.rank = shape.rank;
  device.num_experts = config.num_experts;
  device.num_topk = config.num_topk;
  device.max_tokens = config.max_tokens_per_rank;
  bool is_even = true;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    device.first_expert[rank] = shape.placement.first_seat(rank);
    is_even = is_even && shape.placement.num_local(rank) == shape.max_local_experts;
  }
  device.first_expert[shape.num_ranks] = shape.num_seats;
  device.max_local_experts = shape.max_local_experts;
  device.even_local_experts = is_even ? shape.max_local_experts : 0;
  // Exact for 16 bits: the product is at most 65535 too large, less than 2^32 / divisor.
  if (device.even_local_experts > 1) {
    device.even_multiplier =
        static_cast<std::uint32_t>((std::uint64_t{1} << 32) / std::uint64_t(device.even_local_experts) + 1);
  }
  device.layout = config.layout;
  device.expert_alignment = config.expert_alignment;
  device.capacity_rows = shape.capacity_rows;
  device.can_overflow = shape.can_overflow;
  device.has_zero_padding = config.zero_padding;
  device.digest = static_cast<std::uint32_t>(shape.digest ^ shape.digest >> 32);
  device.hidden = config.hidden;
  device.cast = config.cast;
  device.scale_format = config.scale_format;
  device.scale_items = shape.dispatch_row.scale_items;
  fill_row_parts(shape.dispatch_row, device);
  device.combine_hidden = shape.combine_row.hidden;
  device.combine_dtype = shape.combine_row.dtype;
  device.combine_words = words_of(shape.combine_row.payload_bytes);
  device.slots_per_token = shape.combine_slots_per_token;
  device.table = table_format(config.num_topk, shape.max_local_experts, shape.combine_slots_per_token);
  device.weight_words = base::ceil_div(static_cast<std::uint32_t>(config.num_topk), 3U);
  fill_offsets(device);
  return device;
}

std::optional<std::string> find_device_config_error(const ExchangeConfig& config, const GroupFacts& group) {
  const auto unsupported = [](std::string_view what, std::string_view remedy) {
    return fmt::format("{}: devices do not support it in this version; {}", what, remedy);
  };
  if (config.path != Path::latency) return unsupported("config.path is throughput", "use latency");
  if (config.seats_per_rank > 0) return unsupported("config.seats_per_rank is set", "leave it 0");
  if (config.combine_rows != CombineRows::per_rank) {
    return unsupported("config.combine_rows is per_expert", "use per_rank");
  }
  if (config.combine_lane) return unsupported("config.combine_lane is set", "leave it unset");
  if (group.levels != 1) return unsupported("the group has two levels", "join with options.levels = 1");
  if (group.topology.has_unmapped()) {
    return unsupported("some ranks do not map each other", "join with options.map_peers = reachable");
  }
  if (config.num_experts > kMaxDeviceExperts) {
    return fmt::format("config.num_experts is {}; devices support up to {}", config.num_experts, kMaxDeviceExperts);
  }
  if (config.num_topk > kMaxDeviceTopk) {
    return fmt::format("config.num_topk is {}; devices support up to {}", config.num_topk, kMaxDeviceTopk);
  }
  const Shape shape = make_shape(config, group);
  if (shape.max_recv_rows > kMaxDeviceRows) {
    return fmt::format(
        "config.max_tokens_per_rank {} over {} ranks gives {} rows; the latency path of devices supports up to {}",
        config.max_tokens_per_rank,
        shape.num_ranks,
        shape.max_recv_rows,
        kMaxDeviceRows);
  }
  const std::size_t bytes = plan_bytes(device_shape(shape));
  if (bytes > kMaxPlanBytes) {
    return fmt::format(
        "config.max_tokens_per_rank {} with {} experts a rank needs {} bytes of a block's shared memory; at most {} "
        "are used: lower it",
        config.max_tokens_per_rank,
        shape.max_local_experts,
        bytes,
        kMaxPlanBytes);
  }
  return std::nullopt;
}

}  // namespace moebus::model

#include "cli/gather.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "moebus/error.hpp"

namespace moebus::cli {

namespace {

// One expert a rank, and every message is a token that chooses them all.
ExchangeConfig all_to_all(int num_ranks, std::size_t message_bytes) {
  ExchangeConfig config;
  config.num_experts = num_ranks;
  config.num_topk = num_ranks;
  config.hidden = static_cast<int>(message_bytes);
  config.max_tokens_per_rank = 1;
  config.dtype = DType::u8;
  config.combine_hidden = 1;
  return config;
}

}  // namespace

Gather::Gather(const Group& group)
    : num_ranks_(group.num_ranks()),
      exchange_(group, all_to_all(group.num_ranks(), kMessageBytes)),
      everyone_(static_cast<std::size_t>(group.num_ranks())),
      message_(kMessageBytes),
      received_(kMessageBytes * static_cast<std::size_t>(group.num_ranks())) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
  exchange_.prepare();
}

const std::byte* Gather::round(const void* bytes, std::size_t size) {
  if (size > 0) std::memcpy(message_.data(), bytes, size);
  DispatchInput input;
  input.tokens = tensor_2d(message_.data(), DType::u8, 1, static_cast<std::int64_t>(kMessageBytes));
  input.topk_idx = tensor_2d(everyone_.data(), DType::i64, 1, num_ranks_);
  const DispatchResult result = exchange_.dispatch(input);
  if (result.num_rows != num_ranks_) {
    throw Error(ErrorCode::internal,
                "a message to all ranks brought " + std::to_string(result.num_rows) + " rows instead of " +
                    std::to_string(num_ranks_));
  }
  std::memcpy(received_.data(), result.tokens.data, received_.size());
  return received_.data();
}

std::vector<std::string> Gather::texts(const std::string& own) {
  const std::uint64_t own_size = own.size();
  const std::byte* const sizes = round(&own_size, sizeof(own_size));
  std::vector<std::uint64_t> size(everyone_.size());
  for (std::size_t rank = 0; rank < size.size(); ++rank) {
    std::memcpy(&size[rank], sizes + rank * kMessageBytes, sizeof(std::uint64_t));
  }
  const std::uint64_t longest = *std::max_element(size.begin(), size.end());
  if (longest > (std::uint64_t{64} << 20)) throw Error(ErrorCode::internal, "a rank's text is longer than 64 MiB");
  std::vector<std::string> all(size.size());
  for (std::size_t first = 0; first < longest; first += kMessageBytes) {
    const std::size_t mine = first < own.size() ? std::min(kMessageBytes, own.size() - first) : 0;
    const std::byte* const rows = round(own.data() + std::min(first, own.size()), mine);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (size[rank] <= first) continue;
      const std::size_t part = std::min<std::size_t>(kMessageBytes, size[rank] - first);
      all[rank].append(reinterpret_cast<const char*>(rows + rank * kMessageBytes), part);  // text is bytes
    }
  }
  return all;
}

void Gather::maximum(std::vector<double>& values) {
  merge(values, [](double a, double b) { return std::max(a, b); });
}

void Gather::sum(std::vector<double>& values) {
  merge(values, [](double a, double b) { return a + b; });
}

void Gather::merge(std::vector<double>& values, double (*of_two)(double, double)) {
  constexpr std::size_t kPerMessage = kMessageBytes / sizeof(double);
  const std::uint64_t own_size = values.size();
  const std::byte* const sizes = round(&own_size, sizeof(own_size));
  for (std::size_t rank = 0; rank < everyone_.size(); ++rank) {
    std::uint64_t size = 0;
    std::memcpy(&size, sizes + rank * kMessageBytes, sizeof(size));
    if (size != own_size) throw Error(ErrorCode::internal, "ranks measured different numbers of values");
  }
  for (std::size_t first = 0; first < values.size(); first += kPerMessage) {
    const std::size_t count = std::min(kPerMessage, values.size() - first);
    const std::byte* const rows = round(values.data() + first, count * sizeof(double));
    for (std::size_t rank = 0; rank < everyone_.size(); ++rank) {
      for (std::size_t i = 0; i < count; ++i) {
        double value = 0;
        std::memcpy(&value, rows + rank * kMessageBytes + i * sizeof(double), sizeof(value));
        values[first + i] = rank == 0 ? value : of_two(values[first + i], value);
      }
    }
  }
}

void Gather::barrier() { round(nullptr, 0); }

}  // namespace moebus::cli

// MPI exchange: dispatch and combine as a user of MPI would write them, rank-major, with the same results as moebus.
// Room: bench · host. Buffers are sized for the worst case and touched once; no call allocates.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moebus::peers {

/// Sizes of one exchange; combined rows are bf16.
struct MpiShape {
  int num_experts = 0;
  int num_topk = 0;
  int max_tokens = 0;
  std::size_t token_bytes = 0;  ///< of a dispatched row
  std::size_t scale_bytes = 0;  ///< of its scales, 0 = none
  int combine_columns = 0;
};

/// What one rank gives.
struct MpiInput {
  std::int64_t num_tokens = 0;
  const std::byte* tokens = nullptr;
  const std::byte* scales = nullptr;
  const std::int64_t* topk_idx = nullptr;
  const float* topk_weights = nullptr;
};

/// Threads: one caller. Every method is collective over MPI_COMM_WORLD.
class MpiExchange {
 public:
  explicit MpiExchange(const MpiShape& shape);
  ~MpiExchange();
  MpiExchange(const MpiExchange&) = delete;
  MpiExchange& operator=(const MpiExchange&) = delete;

  /// Counts, pack, Alltoallv, unpack. Fills tokens(), scales(), ids(), weights(), src_rank(), src_token().
  void dispatch(const MpiInput& input);

  /// Alltoallv of `rows` (as dispatch left them, contiguous by source), then the sum of each token's rows in f32, in
  /// the order of their last choice.
  void combine(const std::byte* rows);

  [[nodiscard]] std::int64_t num_rows() const noexcept { return num_rows_; }

  [[nodiscard]] const std::byte* tokens() const noexcept { return tokens_.data(); }

  [[nodiscard]] const std::byte* scales() const noexcept { return scales_.data(); }

  [[nodiscard]] const std::int32_t* ids() const noexcept { return ids_.data(); }

  [[nodiscard]] const float* weights() const noexcept { return weights_.data(); }

  [[nodiscard]] const std::int32_t* src_token() const noexcept { return src_token_.data(); }

  [[nodiscard]] const std::byte* combined() const noexcept { return combined_.data(); }

 private:
  void choose_ranks(const MpiInput& input) noexcept;
  void pack(const MpiInput& input) noexcept;
  void unpack() noexcept;
  void sum_tokens() noexcept;
  void sum_token(std::size_t token) noexcept;

  MpiShape shape_;
  int rank_ = 0;
  int num_ranks_ = 1;
  std::size_t packet_bytes_ = 0;     // a row with ids, weights and its token's number
  std::vector<std::int32_t> owner_;  // [experts] rank
  std::vector<std::int32_t> first_;  // [ranks] first expert
  std::int64_t num_tokens_ = 0;
  std::int64_t num_rows_ = 0;
  std::vector<std::int32_t> ranks_of_;  // [tokens, K] a token's ranks by last choice, -1 at the end
  std::vector<std::int32_t> place_of_;  // [tokens, K] its row among those sent to that rank
  std::vector<int> send_count_, send_first_, recv_count_, recv_first_;  // [ranks] rows
  std::vector<std::byte> packed_, received_;
  std::vector<std::byte> tokens_, scales_;
  std::vector<std::int32_t> ids_, src_token_;
  std::vector<float> weights_;
  std::vector<std::byte> returned_, combined_;
  std::vector<float> acc_;
  void* packet_type_;  // MPI_Datatype of a packet, kept from this header
  void* row_type_;     // and of a combined row
};

}  // namespace moebus::peers

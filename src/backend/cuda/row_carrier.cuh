// RowCarrier: pieces of dispatched rows, out of this rank's tensors into peers' windows and out of the own window into
// the result. Room: backend/cuda · device. Source: [ours] design 4.5 (self-validating rows).

#pragma once

#include "backend/cuda/routing.cuh"
#include "backend/cuda/rows.cuh"

namespace moebus::backend::cuda {

/// Rows travel in pieces, one a warp at a time: warps of a block work on several rows, and no barrier is needed.
constexpr int kPerLane = 4;
constexpr std::uint32_t kPieceWords = 32 * kPerLane;

/// A lane's words of a piece: word i is word 32 i + lane of the piece.
struct Piece {
  WideWord value[kPerLane];
};

/// A word behind the payload that travels as it is: of the scales that the caller gives, or of a side tensor.
static __device__ __noinline__ WideWord beside_word(const DeviceDispatch& dispatch, int token, std::uint32_t word) {
  const DeviceShape& shape = dispatch.shape;
  const model::RowPart& scale = shape.part[1];
  if (word < scale.first_word + scale.num_words) {
    return load_scales(dispatch.scales, token, static_cast<std::uint32_t>(shape.scale_items), word - scale.first_word);
  }
#pragma unroll 1
  for (int side = 0; side < kMaxSideTensors; ++side) {
    const model::RowPart& bytes = shape.part[2 + side];
    if (word >= bytes.first_word && word < bytes.first_word + bytes.num_words) {
      const DeviceRows& rows = dispatch.side[side];
      return load_word(rows.data + token * rows.row_stride_bytes, bytes.bytes, word - bytes.first_word, false);
    }
  }
  return {};
}

/// Bytes of codes past the row's end are 0 (the cast of 0 is 0, but for a block with an inf).
static __device__ __noinline__ WideWord cut(WideWord codes, std::uint32_t hidden, std::uint32_t word) {
  std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t first = word * kCastElements + 4 * i;
    const std::uint32_t left = first < hidden ? hidden - first : 0;
    if (left < 4) words[i] &= (1U << (8 * left)) - 1U;
  }
  return {words[0], words[1], words[2], words[3]};
}

/// Places a word of scales or of a side tensor. kIsPacked: scales are UE8M0 bytes of the cast; see scales_of.
template <bool kIsPacked>
static __device__ __noinline__ void place_beside(const DeviceDispatch& dispatch,
                                                 std::int64_t row,
                                                 std::uint32_t word,
                                                 WideWord value) {
  const DeviceShape& shape = dispatch.shape;
  const model::RowPart& scale = shape.part[1];
  if (word < scale.first_word + scale.num_words) {
    if (dispatch.out_scales.data == nullptr) return;
    constexpr std::uint32_t kOnes = 0x01010101U;
    if (kIsPacked) {
      value = {__vsub4(value.x, kOnes), __vsub4(value.y, kOnes), __vsub4(value.z, kOnes), __vsub4(value.w, kOnes)};
    }
    store_scales(
        dispatch.out_scales, row, static_cast<std::uint32_t>(shape.scale_items), word - scale.first_word, value);
    return;
  }
#pragma unroll 1
  for (int side = 0; side < kMaxSideTensors; ++side) {
    const model::RowPart& bytes = shape.part[2 + side];
    if (word < bytes.first_word || word >= bytes.first_word + bytes.num_words) continue;
    const DeviceRows& out = dispatch.out_side[side];
    if (out.data != nullptr) {
      store_word(out.data + row * out.row_stride_bytes, bytes.bytes, word - bytes.first_word, false, value);
    }
  }
}

/// Carries pieces of rows of one rank's tokens out, and of those of all ranks in. A warp's.
template <Cast kCast, ScaleFormat kFormat>
class RowCarrier {
 public:
  __device__ RowCarrier(const DeviceDispatch& dispatch, const DeviceCall& call, const PlanMaps& maps)
      : dispatch_(dispatch), shape_(dispatch.shape), call_(call), maps_(maps), lane_(threadIdx.x % 32) {
    is_input_aligned_ = is_aligned(dispatch.tokens.data, dispatch.tokens.row_stride_bytes);
    is_output_aligned_ = is_aligned(dispatch.out_tokens.data, dispatch.out_tokens.row_stride_bytes);
    first_side_ = kCast == Cast::none ? 0 : shape_.part[1].first_word + shape_.part[1].num_words;
    num_pieces_ = static_cast<int>(base::ceil_div(shape_.row_words, kPieceWords));
    num_cast_pieces_ =
        kCast == Cast::none ? 0 : static_cast<int>(base::ceil_div(shape_.part[0].num_words, kPieceWords));
  }

  /// Pieces of a row that comes in.
  [[nodiscard]] __device__ int num_pieces() const { return num_pieces_; }

  /// Pieces of an own row: those that are cast, then those of what is sent as it is.
  [[nodiscard]] __device__ int num_own_pieces() const {
    if (kCast == Cast::none) return num_pieces_;
    const bool has_sides = shape_.row_words > first_side_;
    return num_cast_pieces_ + (has_sides ? num_pieces_ - static_cast<int>(first_side_ / kPieceWords) : 0);
  }

  __device__ void send(int token, int piece) const {
    const std::uint64_t peers = destinations(token);
    if (piece == 0) send_weights(peers, token);
    if (peers == 0) return;
    if (kCast != Cast::none && piece < num_cast_pieces_) {
      WideWord scales{};
      const Piece own = cast_piece(token, piece, scales);
      const std::uint32_t first = static_cast<std::uint32_t>(piece) * kPieceWords;
      for_each_peer(peers, [&](int peer) {
        WideWord* const row = call_.row(peer, shape_.rank, token);
#pragma unroll
        for (std::uint32_t i = 0; i < kPerLane; ++i) {
          const std::uint32_t word = first + 32 * i + lane_;
          if (word < shape_.part[0].num_words) store_wide_relaxed(row + word, own.value[i]);
        }
        if (has_scale_word(piece)) store_wide_relaxed(row + scale_word(piece), scales);
      });
      return;
    }
    const std::uint32_t first = first_plain_word(piece);
#pragma unroll 1
    for (std::uint32_t i = 0; i < kPerLane; ++i) send_plain(peers, token, first + 32 * i);
  }

  /// Asks for a piece of a row in the own window.
  [[nodiscard]] __device__ Piece ask(int src, int token, int piece) const {
    const WideWord* const slot = call_.row(shape_.rank, src, token);
    Piece there;
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const std::uint32_t word = static_cast<std::uint32_t>(piece) * kPieceWords + 32 * i + lane_;
      if (word < shape_.row_words) there.value[i] = load_wide_relaxed(slot + word);
    }
    return there;
  }

  /// Waits for what was asked for, makes its place ready again, and places it.
  __device__ void take(int src, int token, int piece, Piece& there, std::uint32_t copies, std::int32_t rows) const {
    WideWord* const slot = call_.row(shape_.rank, src, token);
    const Awaited awaited{DeviceWait::row, src, token};
    const std::uint32_t first = static_cast<std::uint32_t>(piece) * kPieceWords;
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const std::uint32_t word = first + 32 * i + lane_;
      if (word >= shape_.row_words) continue;
      there.value[i] = call_.wait_row(slot + word, there.value[i], awaited);
      DeviceCall::arm(slot + word);
      if (shape_.escape_words > 0 && word >= first_side_) {
        const WideWord escape = call_.wait_tagged(call_.escapes(shape_.rank, src, token) + word / 32, awaited);
        if ((escape.x >> lane_ & 1) != 0) there.value[i].w = sync::kArmed;
      }
    }
    __syncwarp();
    for_each_copy(copies, rows, [&](std::int64_t row) {
#pragma unroll
      for (std::uint32_t i = 0; i < kPerLane; ++i) {
        const std::uint32_t word = first + 32 * i + lane_;
        if (word < shape_.row_words) place(row, word, there.value[i]);
      }
    });
  }

  __device__ void zero_row(std::int64_t row) const {
#pragma unroll 1
    for (std::uint32_t word = lane_; word < shape_.row_words; word += 32) {
      // A scale of zeros, as it travels.
      const bool is_scale = kFormat == ScaleFormat::ue8m0 && kCast != Cast::none && word >= shape_.part[1].first_word &&
                            word < first_side_;
      constexpr std::uint32_t kOnes = 0x01010101U;
      place(row, word, is_scale ? WideWord{kOnes, kOnes, kOnes, kOnes} : WideWord{});
    }
  }

 private:
  /// Bits of the ranks that own an expert of the token, this one too: own rows take the way through the own window, so
  /// that one piece of code takes all.
  [[nodiscard]] __device__ std::uint64_t destinations(int token) const {
    std::uint64_t bit = 0;
    if (static_cast<int>(lane_) < shape_.num_topk) {
      const int expert = maps_.own_expert(token, static_cast<int>(lane_), shape_.num_topk);
      if (expert >= 0) bit = std::uint64_t{1} << owner_of(shape_, expert);
    }
    const std::uint32_t low = __reduce_or_sync(kAllLanes, static_cast<std::uint32_t>(bit));
    const std::uint32_t high =
        shape_.num_ranks > 32 ? __reduce_or_sync(kAllLanes, static_cast<std::uint32_t>(bit >> 32)) : 0;
    return std::uint64_t{high} << 32 | low;
  }

  /// From the rank after this one on, so that not all ranks write to the same peer first.
  template <class Function>
  __device__ __forceinline__ void for_each_peer(std::uint64_t peers, const Function& function) const {
    const std::uint64_t after = peers & ~((std::uint64_t{2} << shape_.rank) - 1);
    std::uint64_t rest = after != 0 ? after : peers;
#pragma unroll 1
    for (std::uint64_t left = peers; left != 0; rest = rest != 0 ? rest : left) {
      const int peer = __ffsll(static_cast<long long>(rest)) - 1;
      function(peer);
      rest &= rest - 1;
      left &= ~(std::uint64_t{1} << peer);
    }
  }

  template <class Function>
  __device__ __forceinline__ void for_each_copy(std::uint32_t copies,
                                                std::int32_t rows,
                                                const Function& function) const {
#pragma unroll 1
    for (std::uint32_t rest = copies; rest != 0; rest &= rest - 1) {
      function(std::int64_t{__shfl_sync(kAllLanes, rows, __ffs(static_cast<int>(rest)) - 1)});
    }
  }

  // --- Pieces that are cast: 128 words of codes, and the scales that belong to them ---

  /// All scales of a piece are words of their own: four f32 words, or one word of sixteen UE8M0 bytes.
  [[nodiscard]] __device__ std::uint32_t scale_word(int piece) const {
    const std::uint32_t at =
        kFormat == ScaleFormat::f32 ? static_cast<std::uint32_t>(piece) * 4 + lane_ : static_cast<std::uint32_t>(piece);
    return shape_.part[1].first_word + at;
  }

  /// True in lanes that hold a scale word of the piece.
  [[nodiscard]] __device__ bool has_scale_word(int piece) const {
    constexpr std::uint32_t kWords = kFormat == ScaleFormat::f32 ? 4 : 1;
    return lane_ < kWords && scale_word(piece) < first_side_;
  }

  [[nodiscard]] __device__ Piece cast_piece(int token, int piece, WideWord& scales) const {
    const std::byte* const row = dispatch_.tokens.data + token * dispatch_.tokens.row_stride_bytes;
    const auto row_bytes = static_cast<std::uint32_t>(shape_.hidden) * 2;
    const std::uint32_t first = static_cast<std::uint32_t>(piece) * kPieceWords + lane_;
    WideWord low[kPerLane];
    WideWord high[kPerLane];
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const std::uint32_t word = first + 32 * i;
      low[i] = high[i] = WideWord{};
      if (2 * word * kWide < row_bytes) low[i] = load_word(row, row_bytes, 2 * word, is_input_aligned_);
      if ((2 * word + 1) * kWide < row_bytes) high[i] = load_word(row, row_bytes, 2 * word + 1, is_input_aligned_);
    }
    Piece own;
    std::uint32_t scale = 0;  // of block lane % 4 in words 32 (lane / 4)
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const CastWord cast = cast_word<kFormat>(low[i], high[i]);
      own.value[i] = cast.codes;
      if (is_cut(first + 32 * i))
        own.value[i] = cut(cast.codes, static_cast<std::uint32_t>(shape_.hidden), first + 32 * i);
      const std::uint32_t of_block = __shfl_sync(kAllLanes, cast.scale, static_cast<int>(8 * (lane_ % 4)));
      if (lane_ / 4 == i) scale = of_block;
    }
    const auto num_blocks = static_cast<std::uint32_t>(model::num_scale_blocks(shape_.hidden));
    if (static_cast<std::uint32_t>(piece) * 4 * kPerLane + lane_ >= num_blocks) scale = 0;
    scales = scales_of(scale);
    return own;
  }

  /// f32: lane i gets those of words 32 i. UE8M0: bytes, each plus 1, so that none is 0xFF (an exponent 254 is not
  /// made).
  [[nodiscard]] __device__ WideWord scales_of(std::uint32_t scale) const {
    // Four neighbours, in each of the first lanes.
    std::uint32_t items[4];
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) items[i] = __shfl_sync(kAllLanes, scale, static_cast<int>(4 * lane_ + i));
    if constexpr (kFormat == ScaleFormat::f32) {
      return {items[0], items[1], items[2], items[3]};
    } else {
      const std::uint32_t packed = __vadd4(items[0] | items[1] << 8 | items[2] << 16 | items[3] << 24, 0x01010101U);
#pragma unroll
      for (int i = 0; i < 4; ++i) items[i] = __shfl_sync(kAllLanes, packed, i);
      return {items[0], items[1], items[2], items[3]};
    }
  }

  [[nodiscard]] __device__ bool is_cut(std::uint32_t word) const {
    return (word + 1) * kCastElements > static_cast<std::uint32_t>(shape_.hidden);
  }

  // --- What travels as it is ---

  [[nodiscard]] __device__ std::uint32_t first_plain_word(int piece) const {
    return (static_cast<std::uint32_t>(piece - num_cast_pieces_) + first_side_ / kPieceWords) * kPieceWords;
  }

  [[nodiscard]] __device__ bool is_plain(std::uint32_t word) const {
    return word >= first_side_ && word < shape_.row_words;
  }

  [[nodiscard]] __device__ WideWord plain_word(int token, std::uint32_t word) const {
    const model::RowPart& payload = shape_.part[0];
    if (kCast != Cast::none || word >= payload.num_words) return beside_word(dispatch_, token, word);
    return load_word(
        dispatch_.tokens.data + token * dispatch_.tokens.row_stride_bytes, payload.bytes, word, is_input_aligned_);
  }

  /// Sends 32 words; one that looks armed travels changed, and is named in their escape mask.
  __device__ void send_plain(std::uint64_t peers, int token, std::uint32_t first) const {
    if (first >= shape_.row_words || first + 32 <= first_side_) return;
    const std::uint32_t word = first + lane_;
    WideWord value{};
    if (is_plain(word)) value = plain_word(token, word);
    const std::uint32_t mask = __ballot_sync(kAllLanes, is_plain(word) && value.w == sync::kArmed);
    if (value.w == sync::kArmed) value.w = 0;
    for_each_peer(peers, [&](int peer) {
      if (is_plain(word)) store_wide_relaxed(call_.row(peer, shape_.rank, token) + word, value);
      if (lane_ == 0)
        store_wide_relaxed(call_.escapes(peer, shape_.rank, token) + first / 32, {mask, 0, 0, call_.tag()});
    });
  }

  __device__ void send_weights(std::uint64_t peers, int token) const {
    if (!dispatch_.has_weights || lane_ >= shape_.weight_words) return;
    const float* const weights =
        (dispatch_.topk_weights != nullptr ? dispatch_.topk_weights : dispatch_.handle.weights) +
        std::int64_t{token} * shape_.num_topk;
    std::uint32_t bits[3] = {0, 0, 0};
#pragma unroll
    for (std::uint32_t j = 0; j < 3; ++j) {
      const std::uint32_t k = 3 * lane_ + j;
      if (k < static_cast<std::uint32_t>(shape_.num_topk)) bits[j] = __float_as_uint(weights[k]);
    }
    const WideWord value{bits[0], bits[1], bits[2], call_.tag()};
    for_each_peer(peers, [&](int peer) { store_wide_relaxed(call_.weights(peer, shape_.rank, token) + lane_, value); });
  }

  __device__ __forceinline__ void place(std::int64_t row, std::uint32_t word, const WideWord& value) const {
    const model::RowPart& payload = shape_.part[0];
    if (word >= payload.num_words) {
      place_beside<kCast != Cast::none && kFormat == ScaleFormat::ue8m0>(dispatch_, row, word, value);
    } else if (dispatch_.out_tokens.data != nullptr) {
      const DeviceRows& out = dispatch_.out_tokens;
      store_word(out.data + row * out.row_stride_bytes, payload.bytes, word, is_output_aligned_, value);
    }
  }

  const DeviceDispatch& dispatch_;
  const DeviceShape& shape_;
  const DeviceCall& call_;
  PlanMaps maps_;
  std::uint32_t lane_;
  std::uint32_t first_side_;  ///< first word that is not cast, nor a scale of the cast
  int num_pieces_;
  int num_cast_pieces_;
  bool is_input_aligned_ = false;
  bool is_output_aligned_ = false;
};

}  // namespace moebus::backend::cuda

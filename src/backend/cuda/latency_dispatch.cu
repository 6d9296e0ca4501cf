// Latency dispatch: rows leave before anyone's routing is known, for slots [source][token] at their destinations, and
// are placed as they come. Block 0 keeps the books, the others carry rows.
// Room: backend/cuda · device.
// Source: [ours] design 4.2, 4.5 (self-validating rows), 4.8 (shares); measured sketches, docs/performance.md.

#include "backend/cuda/cuda_check.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/routing.cuh"
#include "backend/cuda/rows.cuh"

namespace moebus::backend::cuda {

namespace {

constexpr int kMaxThreads = 512;

/// Rows travel in pieces, one a warp at a time: warps of a block work on several rows, and no barrier is needed.
constexpr int kPerLane = 4;
constexpr std::uint32_t kPieceWords = 32 * kPerLane;

/// A lane's words of a piece: word i is word 32 i + lane of the piece.
struct Piece {
  WideWord value[kPerLane];
};

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
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) send_plain(peers, token, first + 32 * i);
  }

  /// Places a piece of an own row: `rows` has a result row in each lane of `copies`.
  __device__ void take_own(int token, int piece, std::uint32_t copies, std::int32_t rows) const {
    if (kCast != Cast::none && piece < num_cast_pieces_) {
      WideWord scales{};
      const Piece own = cast_piece(token, piece, scales);
      const std::uint32_t first = static_cast<std::uint32_t>(piece) * kPieceWords;
      for_each_copy(copies, rows, [&](std::int64_t row) {
#pragma unroll
        for (std::uint32_t i = 0; i < kPerLane; ++i) {
          const std::uint32_t word = first + 32 * i + lane_;
          if (word < shape_.part[0].num_words) place(row, word, own.value[i]);
        }
        if (has_scale_word(piece)) place(row, scale_word(piece), scales);
      });
      return;
    }
    const std::uint32_t first = first_plain_word(piece);
    Piece own;
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const std::uint32_t word = first + 32 * i + lane_;
      if (is_plain(word)) own.value[i] = plain_word(token, word);
    }
    for_each_copy(copies, rows, [&](std::int64_t row) {
#pragma unroll
      for (std::uint32_t i = 0; i < kPerLane; ++i) {
        const std::uint32_t word = first + 32 * i + lane_;
        if (is_plain(word)) place(row, word, own.value[i]);
      }
    });
  }

  /// Asks for a piece of a row that comes from a peer.
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
  __device__ void take_peer(
      int src, int token, int piece, Piece& there, std::uint32_t copies, std::int32_t rows) const {
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
    for (std::uint32_t word = lane_; word < shape_.row_words; word += 32) {
      // A scale of zeros, as it travels.
      const bool is_scale = kFormat == ScaleFormat::ue8m0 && kCast != Cast::none && word >= shape_.part[1].first_word &&
                            word < first_side_;
      constexpr std::uint32_t kOnes = 0x01010101U;
      place(row, word, is_scale ? WideWord{kOnes, kOnes, kOnes, kOnes} : WideWord{});
    }
  }

 private:
  /// Bits of the peers that own an expert of the token.
  [[nodiscard]] __device__ std::uint64_t destinations(int token) const {
    std::uint64_t bit = 0;
    if (static_cast<int>(lane_) < shape_.num_topk) {
      const int expert = maps_.own_expert(token, static_cast<int>(lane_), shape_.num_topk);
      if (expert >= 0) bit = std::uint64_t{1} << owner_of(shape_, expert);
    }
    const std::uint32_t low = __reduce_or_sync(kAllLanes, static_cast<std::uint32_t>(bit));
    const std::uint32_t high =
        shape_.num_ranks > 32 ? __reduce_or_sync(kAllLanes, static_cast<std::uint32_t>(bit >> 32)) : 0;
    return (std::uint64_t{high} << 32 | low) & ~(std::uint64_t{1} << shape_.rank);
  }

  /// From the rank after this one on, so that not all ranks write to the same peer first.
  template <class Function>
  __device__ __forceinline__ void for_each_peer(std::uint64_t peers, const Function& function) const {
    const std::uint64_t after = peers >> shape_.rank << shape_.rank;
    for (std::uint64_t rest = after; rest != 0; rest &= rest - 1) function(__ffsll(static_cast<long long>(rest)) - 1);
    for (std::uint64_t rest = peers ^ after; rest != 0; rest &= rest - 1) {
      function(__ffsll(static_cast<long long>(rest)) - 1);
    }
  }

  template <class Function>
  __device__ __forceinline__ void for_each_copy(std::uint32_t copies,
                                                std::int32_t rows,
                                                const Function& function) const {
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
    std::uint32_t items[kPerLane][4];  // scales of the four blocks in each 32 words
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const CastWord cast = cast_word<kFormat>(low[i], high[i]);
      own.value[i] = cut(cast.codes, first + 32 * i);
      const std::uint32_t scale = kFormat == ScaleFormat::f32 ? __float_as_uint(cast.block.scale) : cast.block.exponent;
#pragma unroll
      for (std::uint32_t block = 0; block < 4; ++block) {
        const std::uint32_t value = __shfl_sync(kAllLanes, scale, static_cast<int>(8 * block));
        const std::uint32_t index = (static_cast<std::uint32_t>(piece) * kPerLane + i) * 4 + block;
        items[i][block] = index < static_cast<std::uint32_t>(model::num_scale_blocks(shape_.hidden)) ? value : 0;
      }
    }
    scales = scales_of(items);
    return own;
  }

  /// f32: lane i gets those of words 32 i. UE8M0: bytes, each plus 1, so that none is 0xFF (an exponent 254 is not
  /// made).
  [[nodiscard]] __device__ WideWord scales_of(const std::uint32_t (&items)[kPerLane][4]) const {
    if constexpr (kFormat == ScaleFormat::f32) {
      WideWord word{};
#pragma unroll
      for (std::uint32_t i = 0; i < kPerLane; ++i) {
        if (lane_ == i) word = {items[i][0], items[i][1], items[i][2], items[i][3]};
      }
      return word;
    } else {
      std::uint32_t packed[kPerLane];
#pragma unroll
      for (std::uint32_t i = 0; i < kPerLane; ++i) {
        packed[i] = __vadd4(items[i][0] | items[i][1] << 8 | items[i][2] << 16 | items[i][3] << 24, 0x01010101U);
      }
      return {packed[0], packed[1], packed[2], packed[3]};
    }
  }

  /// Bytes past the row's end are 0 (the cast of 0 is 0, but for a block with an inf).
  [[nodiscard]] __device__ WideWord cut(const WideWord& codes, std::uint32_t word) const {
    const std::int64_t left = std::int64_t{shape_.hidden} - std::int64_t{word} * kCastElements;
    if (left >= kCastElements) return codes;
    std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t bytes = left - 4 * i;
      if (bytes <= 0) {
        words[i] = 0;
      } else if (bytes < 4) {
        words[i] &= (1U << (8 * bytes)) - 1U;
      }
    }
    return {words[0], words[1], words[2], words[3]};
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
    if (kCast == Cast::none && word < payload.num_words) {
      return load_word(
          dispatch_.tokens.data + token * dispatch_.tokens.row_stride_bytes, payload.bytes, word, is_input_aligned_);
    }
    const model::RowPart& scale = shape_.part[1];
    if (kCast == Cast::none && word < scale.first_word + scale.num_words) {
      return load_scales(
          dispatch_.scales, token, static_cast<std::uint32_t>(shape_.scale_items), word - scale.first_word);
    }
    for (int side = 0; side < kMaxSideTensors; ++side) {
      const model::RowPart& bytes = shape_.part[2 + side];
      if (word >= bytes.first_word && word < bytes.first_word + bytes.num_words) {
        const DeviceRows& rows = dispatch_.side[side];
        return load_word(rows.data + token * rows.row_stride_bytes, bytes.bytes, word - bytes.first_word, false);
      }
    }
    return {};
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

  /// Scales as they are, from scales as they travel; see scales_of.
  [[nodiscard]] __device__ static WideWord unpacked(const WideWord& scales) {
    if constexpr (kCast == Cast::none || kFormat != ScaleFormat::ue8m0) {
      return scales;
    } else {
      constexpr std::uint32_t kOnes = 0x01010101U;
      return {__vsub4(scales.x, kOnes), __vsub4(scales.y, kOnes), __vsub4(scales.z, kOnes), __vsub4(scales.w, kOnes)};
    }
  }

  __device__ __forceinline__ void place(std::int64_t row, std::uint32_t word, const WideWord& value) const {
    const model::RowPart& payload = shape_.part[0];
    const model::RowPart& scale = shape_.part[1];
    if (word < payload.num_words) {
      const DeviceRows& out = dispatch_.out_tokens;
      if (out.data != nullptr) {
        store_word(out.data + row * out.row_stride_bytes, payload.bytes, word, is_output_aligned_, value);
      }
    } else if (word < scale.first_word + scale.num_words) {
      if (dispatch_.out_scales.data != nullptr) {
        store_scales(dispatch_.out_scales,
                     row,
                     static_cast<std::uint32_t>(shape_.scale_items),
                     word - scale.first_word,
                     unpacked(value));
      }
    } else {
      for (int side = 0; side < kMaxSideTensors; ++side) {
        const model::RowPart& bytes = shape_.part[2 + side];
        if (word < bytes.first_word || word >= bytes.first_word + bytes.num_words) continue;
        const DeviceRows& out = dispatch_.out_side[side];
        if (out.data != nullptr) {
          store_word(out.data + row * out.row_stride_bytes, bytes.bytes, word - bytes.first_word, false, value);
        }
      }
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

/// What is written beside the rows: where each of them is from, and what combine must know. One warp; lane = choice.
class RowNotes {
 public:
  __device__ RowNotes(const DeviceDispatch& dispatch, const DeviceCall& call, const Plan& plan)
      : dispatch_(dispatch),
        shape_(dispatch.shape),
        call_(call),
        plan_(plan),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void write_absent(int src, int token) const {
    if (lane_ == 0 && dispatch_.handle.slots != nullptr) dispatch_.handle.slots[at(src, token)] = -1;
  }

  /// `local`, `row`: this lane's choice and its result row, -1 = none. `same`: lanes whose choice is the same.
  __device__ void write(int src, int token, int local, std::int32_t row, std::uint32_t same) const {
    const float weight = weight_of(src, token, local);
    if (lane_ < shape_.num_topk) keep(src, token, row, weight);
    if (plan_.is_rank_major()) {
      write_rank_major(src, token, local, row, weight);
    } else {
      write_expert_rows(src, token, local, row, weight, same);
    }
  }

 private:
  [[nodiscard]] __device__ std::int64_t at(int src, int token) const {
    return std::int64_t{src} * shape_.max_tokens + token;
  }

  [[nodiscard]] __device__ float weight_of(int src, int token, int local) const {
    if (local < 0 || !plan_.has_weights_of(src)) return 0;
    if (src == shape_.rank) {
      const float* const own = dispatch_.topk_weights != nullptr ? dispatch_.topk_weights : dispatch_.handle.weights;
      return own[std::int64_t{token} * shape_.num_topk + lane_];
    }
    const WideWord* const word = call_.weights(shape_.rank, src, token) + lane_ / 3;
    const WideWord value = call_.wait_tagged(word, {DeviceWait::weights, src, token});
    return __uint_as_float(lane_ % 3 == 0 ? value.x : lane_ % 3 == 1 ? value.y : value.z);
  }

  __device__ void keep(int src, int token, std::int32_t row, float weight) const {
    const DeviceHandle& handle = dispatch_.handle;
    if (handle.slots == nullptr) return;
    handle.positions[at(src, token) * shape_.num_topk + lane_] = row;
    handle.recv_weights[at(src, token) * shape_.num_topk + lane_] = weight;
    if (lane_ > 0) return;
    const int slot =
        src == shape_.rank ? 0 : static_cast<int>(read_field(shape_, call_.table(shape_.rank, src, token), 0));
    handle.slots[at(src, token)] = static_cast<std::int8_t>(slot < shape_.slots_per_token ? slot : 0);
  }

  __device__ void write_rank_major(int src, int token, int local, std::int32_t row, float weight) const {
    const std::int32_t kept = __reduce_max_sync(kAllLanes, row);
    if (kept < 0) return;
    if (lane_ < shape_.num_topk) {
      const std::int64_t item = std::int64_t{kept} * shape_.num_topk + lane_;
      if (dispatch_.out_idx != nullptr) dispatch_.out_idx[item] = local;
      if (dispatch_.out_weights != nullptr) dispatch_.out_weights[item] = weight;
    }
    if (lane_ == 0) write_source(kept, src, token);
  }

  __device__ void write_expert_rows(
      int src, int token, int local, std::int32_t row, float weight, std::uint32_t same) const {
    float sum = 0;
    bool is_first = true;
    for (int k = 0; k < shape_.num_topk; ++k) {
      const float term = __shfl_sync(kAllLanes, weight, k);
      if (local < 0 || (same >> k & 1) == 0) continue;
      sum = is_first ? term : sum + term;
      is_first = false;
    }
    const bool is_leader = local >= 0 && __ffs(static_cast<int>(same)) - 1 == lane_;
    if (!is_leader || row < 0) return;
    if (dispatch_.out_weights != nullptr) dispatch_.out_weights[row] = sum;
    write_source(row, src, token);
  }

  __device__ void write_source(std::int32_t row, int src, int token) const {
    if (dispatch_.out_src_rank != nullptr) dispatch_.out_src_rank[row] = src;
    if (dispatch_.out_src_token != nullptr) dispatch_.out_src_token[row] = token;
  }

  const DeviceDispatch& dispatch_;
  const DeviceShape& shape_;
  const DeviceCall& call_;
  const Plan& plan_;
  int lane_;
};

/// All threads: places the rows of all sources' tokens of a share.
template <class Carrier>
__device__ void take_share(const DeviceDispatch& dispatch,
                           const DeviceCall& call,
                           const Plan& plan,
                           const Carrier& carrier,
                           int share,
                           int num_shares) {
  const DeviceShape& shape = dispatch.shape;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const RowNotes notes(dispatch, call, plan);
  const int num_pieces = max(carrier.num_pieces(), carrier.num_own_pieces());
  for_each_unit(share, num_shares, shape.max_tokens, num_pieces * shape.num_ranks, [&](int token, int unit) {
    const int src = (shape.rank + unit / num_pieces) % shape.num_ranks;
    const int piece = unit % num_pieces;
    if (!plan.has_row(src, token)) {
      if (piece == 0) notes.write_absent(src, token);
      return;
    }
    const bool is_own = src == shape.rank;
    if (piece >= (is_own ? carrier.num_own_pieces() : carrier.num_pieces())) return;
    // The row is asked for first: both answers are on the way together.
    Piece there;
    if (!is_own) there = carrier.ask(src, token, piece);
    const int local = lane < shape.num_topk ? plan.choice(src, token, lane) : -1;
    const std::int32_t row = local >= 0 ? plan.position(src, token, local) : -1;
    const std::uint32_t same = __match_any_sync(kAllLanes, local);
    const std::uint32_t here = __ballot_sync(kAllLanes, row >= 0);
    const int leader = __ffs(static_cast<int>(plan.is_rank_major() ? here : same)) - 1;
    const std::uint32_t copies = __ballot_sync(kAllLanes, row >= 0 && lane == leader);
    if (is_own) {
      carrier.take_own(token, piece, copies, row);
    } else {
      carrier.take_peer(src, token, piece, there, copies, row);
    }
    if (piece == 0) notes.write(src, token, local, row, same);
  });
}

/// Block 0: tables for every peer, counts for the caller.
class Keeper {
 public:
  __device__ Keeper(const DeviceDispatch& dispatch, const DeviceCall& call, const PlanMaps& maps)
      : dispatch_(dispatch), shape_(dispatch.shape), call_(call), maps_(maps) {}

  /// All threads. After it nobody waits for this rank's routing.
  __device__ void publish(const sync::DeviceHeader& header) const {
    const int thread = static_cast<int>(threadIdx.x);
    for (int peer = thread; peer < shape_.num_ranks; peer += static_cast<int>(blockDim.x)) {
      if (peer != shape_.rank) call_.say_header(header, peer);
    }
    const int num_warps = static_cast<int>(blockDim.x / 32);
    for (int token = thread / 32; token < dispatch_.num_tokens; token += num_warps) write_entries(token);
    // Nobody waits for what follows.
    for (int token = thread / 32; token < dispatch_.num_tokens; token += num_warps) keep_own(token);
  }

  /// All threads, with the plan: what the caller is told.
  __device__ void write_counts(const Plan& plan) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int num_threads = static_cast<int>(blockDim.x);
    for (int src = thread; src < shape_.num_ranks; src += num_threads) {
      if (dispatch_.out_rank_counts != nullptr) dispatch_.out_rank_counts[src] = plan.rank_count(src);
    }
    for (int local = thread; local < plan.num_local(); local += num_threads) {
      if (dispatch_.out_wanted != nullptr) dispatch_.out_wanted[local] = plan.wanted(local);
      const int kept = plan.is_rank_major() ? plan.wanted(local) : plan.kept(local);
      if (dispatch_.out_counts != nullptr) dispatch_.out_counts[local] = kept;
    }
    if (dispatch_.out_offsets != nullptr && !plan.is_rank_major()) {
      for (int group = thread; group <= plan.num_local(); group += num_threads) {
        dispatch_.out_offsets[group] = plan.offset(group);
      }
    }
    if (shape_.layout == Layout::expert_major) note_padding(plan);
    if (plan.is_rank_major() && shape_.can_overflow) take_off_dropped(plan);
    if (thread == 0) write_totals(plan);
  }

 private:
  /// A warp's view of an own token: lane = choice.
  struct Choices {
    int expert;
    int owner;            ///< -1 = none
    std::uint32_t group;  ///< lanes with the same owner
    std::uint32_t last;   ///< lanes whose choice is the last of its owner
  };

  [[nodiscard]] __device__ Choices choices_of(int token) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    Choices choices;
    choices.expert = lane < shape_.num_topk ? maps_.own_expert(token, lane, shape_.num_topk) : -1;
    choices.owner = choices.expert >= 0 ? owner_of(shape_, choices.expert) : -1;
    choices.group = __match_any_sync(kAllLanes, choices.owner);
    choices.last = __ballot_sync(kAllLanes, choices.owner >= 0 && lane == 31 - __clz(static_cast<int>(choices.group)));
    return choices;
  }

  /// Place of a rank among the token's ranks, which stand in order of their last chosen expert; -1 if it is none.
  [[nodiscard]] __device__ static int slot_of(const Choices& choices, int rank) {
    const std::uint32_t lanes = __ballot_sync(kAllLanes, choices.owner == rank);
    if (lanes == 0) return -1;
    const int last = 31 - __clz(static_cast<int>(lanes));
    return __popc(choices.last & ((1U << last) - 1U));
  }

  __device__ void write_entries(int token) const {
    const Choices choices = choices_of(token);
    for (int step = 1; step < shape_.num_ranks; ++step) {
      const int peer = (shape_.rank + step) % shape_.num_ranks;
      write_entry(peer, token, choices);
    }
  }

  __device__ void write_entry(int peer, int token, const Choices& choices) const {
    const model::TableFormat& format = shape_.table;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int slot = slot_of(choices, peer);
    const int local = choices.owner == peer ? choices.expert - shape_.first_expert[peer] + 1 : 0;
    const model::FieldPlace place = model::field_place(format, static_cast<std::uint32_t>(1 + lane));
    const std::uint32_t bits = static_cast<std::uint32_t>(local) << place.shift;
    WideWord* const entry = call_.table(peer, shape_.rank, token);
    for (std::uint32_t wide = 0; wide < format.num_wide; ++wide) {
      std::uint32_t words[model::kTableWords];
#pragma unroll
      for (std::uint32_t word = 0; word < model::kTableWords; ++word) {
        const bool is_mine = local > 0 && place.wide == wide && place.word == word;
        words[word] = __reduce_or_sync(kAllLanes, is_mine ? bits : 0U);
      }
      // Field 0.
      if (wide == 0 && slot > 0) words[0] |= static_cast<std::uint32_t>(slot);
      if (lane == 0) store_wide_relaxed(entry + wide, {words[0], words[1], words[2], call_.tag()});
    }
  }

  /// The own half of the handle, and ids that are none.
  __device__ void keep_own(int token) const {
    const DeviceHandle& handle = dispatch_.handle;
    const Choices choices = choices_of(token);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int own = slot_of(choices, shape_.rank);
    if (lane == 0) {
      handle.home[2 * token] = static_cast<std::uint8_t>(__popc(choices.last));
      handle.home[2 * token + 1] = static_cast<std::uint8_t>(own + 1);
    }
    if (lane >= shape_.num_topk || dispatch_.topk_idx == nullptr) return;
    const std::int64_t at = std::int64_t{token} * shape_.num_topk + lane;
    handle.ids[at] = choices.expert;
    if (dispatch_.topk_weights != nullptr) handle.weights[at] = dispatch_.topk_weights[at];
    if (choices.expert < 0) report_bad_id(token, lane);
  }

  __device__ void report_bad_id(int token, int k) const {
    const std::int64_t at = std::int64_t{token} * shape_.num_topk + k;
    const std::int64_t id = dispatch_.has_wide_ids ? reinterpret_cast<const std::int64_t*>(dispatch_.topk_idx)[at]
                                                   : reinterpret_cast<const std::int32_t*>(dispatch_.topk_idx)[at];
    if (id == -1) return;
    sync::DeviceReport& report = *dispatch_.context.report;
    report.bad_id_value = id;
    report.bad_id_token = static_cast<std::uint32_t>(token);
    report.bad_id_choice = static_cast<std::uint32_t>(k);
    report.bad_id_epoch = call_.epoch();
    fence_system();
    atomicAdd_system(reinterpret_cast<unsigned long long*>(&report.num_bad_ids), 1ULL);
  }

  __device__ void note_padding(const Plan& plan) const {
    for (int group = static_cast<int>(threadIdx.x); group < plan.num_local(); group += static_cast<int>(blockDim.x)) {
      const std::int64_t end =
          plan.offset(group + 1) < shape_.capacity_rows ? plan.offset(group + 1) : shape_.capacity_rows;
      for (std::int64_t row = plan.offset(group) + plan.wanted(group); row < end; ++row) {
        if (dispatch_.out_src_rank != nullptr) dispatch_.out_src_rank[row] = -1;
        if (dispatch_.out_src_token != nullptr) dispatch_.out_src_token[row] = -1;
        if (dispatch_.out_weights != nullptr) dispatch_.out_weights[row] = 0;
      }
    }
  }

  /// rank_major: experts of dropped rows did not get them.
  __device__ void take_off_dropped(const Plan& plan) const {
    __syncthreads();
    if (dispatch_.out_counts == nullptr) return;
    const int num_items = shape_.num_ranks * shape_.max_tokens;
    for (int item = static_cast<int>(threadIdx.x); item < num_items; item += static_cast<int>(blockDim.x)) {
      const int src = item / shape_.max_tokens;
      const int token = item % shape_.max_tokens;
      if (token >= plan.num_tokens_of(src) || plan.position(src, token, 0) >= 0) continue;
      std::uint16_t named[model::kMaxDeviceTopk];
      int num_named = 0;
      plan.visit_choices(src, token, [&](int, int local) {
        bool is_new = true;
        for (int i = 0; i < num_named; ++i) is_new = is_new && named[i] != local;
        named[num_named++] = static_cast<std::uint16_t>(local);
        if (is_new) atomicSub(&dispatch_.out_counts[local], 1);
      });
    }
  }

  __device__ void write_totals(const Plan& plan) const {
    std::int64_t num_rows = plan.num_rows();
    std::int64_t num_overflowed = plan.total() - num_rows;
    if (!plan.is_rank_major()) {
      std::int64_t num_kept = 0;
      num_overflowed = 0;
      for (int local = 0; local < plan.num_local(); ++local) {
        num_kept += plan.kept(local);
        num_overflowed += plan.wanted(local) - plan.kept(local);
      }
      if (shape_.layout == Layout::expert_padded) num_rows = num_kept;
    }
    if (dispatch_.out_row_counts != nullptr) {
      dispatch_.out_row_counts[0] = num_rows;
      dispatch_.out_row_counts[1] = num_overflowed;
    }
    if (!dispatch_.has_host_counts) return;
    sync::DeviceReport& report = *dispatch_.context.report;
    report.num_rows = num_rows;
    report.num_overflowed = num_overflowed;
    store_release_system(&report.counts_epoch, call_.epoch());
  }

  const DeviceDispatch& dispatch_;
  const DeviceShape& shape_;
  const DeviceCall& call_;
  PlanMaps maps_;
};

/// All threads: writes zeros into rows that no token fills and that are this block's.
template <class Carrier>
__device__ void zero_padding(
    const DeviceShape& shape, const Plan& plan, const Carrier& carrier, int share, int num_shares) {
  const int num_warps = static_cast<int>(blockDim.x / 32);
  const auto zero = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first + share + std::int64_t{threadIdx.x / 32} * num_shares; row < last;
         row += std::int64_t{num_warps} * num_shares) {
      carrier.zero_row(row);
    }
  };
  if (plan.is_rank_major()) return zero(plan.num_rows(), shape.capacity_rows);
  const bool is_padded = shape.layout == Layout::expert_padded;
  for (int group = 0; group < plan.num_local(); ++group) {
    const std::int64_t end = plan.offset(group + 1);
    zero(plan.offset(group) + plan.kept(group), is_padded || end < shape.capacity_rows ? end : shape.capacity_rows);
  }
  if (!is_padded) zero(plan.num_rows(), shape.capacity_rows);
}

/// Blocks 1.. have a share each. `num_shares` = gridDim.x - 1.
template <Cast kCast, ScaleFormat kFormat>
__global__ void __launch_bounds__(kMaxThreads, 1) dispatch(const __grid_constant__ DeviceDispatch args) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ sync::DeviceHeader headers[kMaxRanks];
  __shared__ int is_mine;
  const DeviceShape& shape = args.shape;
  const DeviceCall call(shape, args.context);
  const PlanMaps maps = PlanMaps::carve(memory, shape);
  const int num_shares = static_cast<int>(gridDim.x) - 1;
  const int own_share = static_cast<int>(blockIdx.x) - 1;
  const bool is_keeper = own_share < 0;
  const sync::DeviceHeader header{static_cast<std::uint32_t>(args.num_tokens),
                                  static_cast<std::uint8_t>(sync::Operation::dispatch_latency),
                                  args.has_weights,
                                  shape.digest,
                                  args.refusal};
  const RowCarrier<kCast, kFormat> carrier(args, call, maps);
  const Keeper keeper(args, call, maps);
  const auto send_if_mine = [&](int share) {
    if (threadIdx.x == 0) is_mine = call.take_share(share) ? 1 : 0;
    __syncthreads();
    const bool is_taken = is_mine != 0;
    __syncthreads();
    if (!is_taken) return;
    for_each_unit(share, num_shares, args.num_tokens, carrier.num_own_pieces(), [&](int token, int piece) {
      carrier.send(token, piece);
    });
  };
  maps.stage_own(args);
  if (is_keeper) {
    __syncthreads();
    keeper.publish(header);
  } else {
    send_if_mine(own_share);
  }
  __syncthreads();
  // Nobody waits for peers before everything has left: a rank makes progress in a single block slot.
  if (threadIdx.x == 0) is_mine = call.are_all_taken(num_shares) ? 1 : 0;
  __syncthreads();
  if (is_mine == 0) {
    for (int share = 0; share < num_shares; ++share) {
      __syncthreads();
      send_if_mine(share);
    }
  }
  Plan plan(args, call, maps, headers);
  plan.build(is_keeper, header);
  if (is_keeper) {
    keeper.write_counts(plan);
    for (int src = static_cast<int>(threadIdx.x); src < shape.num_ranks; src += static_cast<int>(blockDim.x)) {
      if (headers[src].refusal != 0) call.report_refusal(src, headers[src].refusal);
    }
  } else {
    take_share(args, call, plan, carrier, own_share, num_shares);
    if (shape.has_zero_padding) zero_padding(shape, plan, carrier, own_share, num_shares);
  }
  call.leave();
}

using Kernel = void (*)(DeviceDispatch);

Kernel kernel_for(const DeviceShape& shape) {
  if (shape.cast == Cast::none) return dispatch<Cast::none, ScaleFormat::none>;
  return shape.scale_format == ScaleFormat::f32 ? dispatch<Cast::fp8, ScaleFormat::f32>
                                                : dispatch<Cast::fp8, ScaleFormat::ue8m0>;
}

}  // namespace

void launch_dispatch(const DeviceDispatch& dispatch, const DeviceLaunch& launch, const DeviceFacts& facts) {
  const int num_shares = shares_for(dispatch.shape, launch, facts);
  const std::size_t shared_bytes = PlanMaps::carve(nullptr, dispatch.shape).size_bytes;
  launch_kernel(kernel_for(dispatch.shape), dispatch, {num_shares + 1, kMaxThreads, shared_bytes}, launch.stream);
}

void load_dispatch(const DeviceShape& shape) {
  load_kernel(kernel_for(shape), PlanMaps::carve(nullptr, shape).size_bytes);
}

}  // namespace moebus::backend::cuda

#include "bench/peers/mpi_exchange.hpp"

#include <mpi.h>

#include <algorithm>
#include <cstring>

namespace moebus::peers {

namespace {

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

MPI_Datatype bytes_type(std::size_t size) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(static_cast<int>(size), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  return type;
}

float widen(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// To nearest, ties to even; the inputs here are finite.
std::uint16_t narrow(float value) {
  std::uint32_t word = 0;
  std::memcpy(&word, &value, sizeof(word));
  return static_cast<std::uint16_t>((word + 0x7FFFU + ((word >> 16) & 1U)) >> 16);
}

void sum_up(const std::vector<int>& counts, std::vector<int>& first) {
  int total = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    first[r] = total;
    total += counts[r];
  }
}

}  // namespace

MpiExchange::MpiExchange(const MpiShape& shape) : shape_(shape) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks_);
  const auto topk = idx(shape.num_topk);
  const auto ranks = idx(num_ranks_);
  const auto tokens = idx(shape.max_tokens);
  const std::size_t most = ranks * tokens;
  packet_bytes_ =
      shape.token_bytes + shape.scale_bytes + topk * (sizeof(std::int32_t) + sizeof(float)) + sizeof(std::int32_t);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    first_.push_back(static_cast<std::int32_t>(owner_.size()));
    const int count = shape.num_experts / num_ranks_ + (rank < shape.num_experts % num_ranks_ ? 1 : 0);
    owner_.insert(owner_.end(), idx(count), rank);
  }
  ranks_of_.resize(tokens * topk);
  place_of_.resize(tokens * topk);
  for (auto* counts : {&send_count_, &send_first_, &recv_count_, &recv_first_}) counts->resize(ranks);
  packed_.resize(most * packet_bytes_);
  received_.resize(most * packet_bytes_);
  tokens_.resize(most * shape.token_bytes);
  scales_.resize(most * shape.scale_bytes);
  ids_.resize(most * topk);
  weights_.resize(most * topk);
  src_token_.resize(most);
  const std::size_t row_bytes = idx(shape.combine_columns) * sizeof(std::uint16_t);
  returned_.resize(most * row_bytes);
  combined_.resize(tokens * row_bytes);
  acc_.resize(idx(shape.combine_columns));
  packet_type_ = new MPI_Datatype(bytes_type(packet_bytes_));
  row_type_ = new MPI_Datatype(bytes_type(row_bytes));
}

MpiExchange::~MpiExchange() {
  for (void* type : {packet_type_, row_type_}) {
    auto* const own = static_cast<MPI_Datatype*>(type);
    MPI_Type_free(own);
    delete own;
  }
}

// Each token's distinct ranks, ordered by its last choice on each: walking the choices backwards finds last ones first.
void MpiExchange::choose_ranks(const MpiInput& input) noexcept {
  const int topk = shape_.num_topk;
  std::fill(send_count_.begin(), send_count_.end(), 0);
  for (std::int64_t n = 0; n < input.num_tokens; ++n) {
    const std::int64_t* const choices = input.topk_idx + n * topk;
    std::int32_t* const ranks = ranks_of_.data() + n * topk;
    std::uint64_t seen = 0;
    int position = topk;
    for (int k = topk - 1; k >= 0; --k) {
      if (choices[k] < 0) continue;
      const std::int32_t owner = owner_[idx(choices[k])];
      if ((seen >> owner & 1U) != 0) continue;
      seen |= std::uint64_t{1} << owner;
      ranks[--position] = owner;
      place_of_[idx(n * topk + position)] = send_count_[idx(owner)]++;
    }
    for (int k = 0; k < position; ++k) ranks[k] = -1;
  }
}

void MpiExchange::pack(const MpiInput& input) noexcept {
  const auto topk = idx(shape_.num_topk);
  for (std::int64_t n = 0; n < input.num_tokens; ++n) {
    for (std::size_t k = 0; k < topk; ++k) {
      const std::int32_t rank = ranks_of_[idx(n) * topk + k];
      if (rank < 0) continue;
      const std::size_t at = idx(send_first_[idx(rank)]) + idx(place_of_[idx(n) * topk + k]);
      std::byte* out = packed_.data() + at * packet_bytes_;
      std::memcpy(out, input.tokens + idx(n) * shape_.token_bytes, shape_.token_bytes);
      out += shape_.token_bytes;
      if (shape_.scale_bytes > 0) std::memcpy(out, input.scales + idx(n) * shape_.scale_bytes, shape_.scale_bytes);
      out += shape_.scale_bytes;
      for (std::size_t c = 0; c < topk; ++c) {
        const auto expert = static_cast<std::int32_t>(input.topk_idx[idx(n) * topk + c]);
        std::memcpy(out + c * sizeof(expert), &expert, sizeof(expert));
      }
      out += topk * sizeof(std::int32_t);
      std::memcpy(out, input.topk_weights + idx(n) * topk, topk * sizeof(float));
      out += topk * sizeof(float);
      const auto token = static_cast<std::int32_t>(n);
      std::memcpy(out, &token, sizeof(token));
    }
  }
}

void MpiExchange::unpack() noexcept {
  const auto topk = idx(shape_.num_topk);
  const std::int32_t first = first_[idx(rank_)];
  const std::int32_t end = rank_ + 1 < num_ranks_ ? first_[idx(rank_ + 1)] : shape_.num_experts;
  for (std::size_t row = 0; row < idx(num_rows_); ++row) {
    const std::byte* in = received_.data() + row * packet_bytes_;
    std::memcpy(tokens_.data() + row * shape_.token_bytes, in, shape_.token_bytes);
    in += shape_.token_bytes;
    if (shape_.scale_bytes > 0) std::memcpy(scales_.data() + row * shape_.scale_bytes, in, shape_.scale_bytes);
    in += shape_.scale_bytes;
    for (std::size_t k = 0; k < topk; ++k) {
      std::int32_t expert = 0;
      float weight = 0;
      std::memcpy(&expert, in + k * sizeof(expert), sizeof(expert));
      std::memcpy(&weight, in + topk * sizeof(expert) + k * sizeof(weight), sizeof(weight));
      const bool is_here = expert >= first && expert < end;
      ids_[row * topk + k] = is_here ? expert - first : -1;
      weights_[row * topk + k] = is_here ? weight : 0.0F;
    }
    std::memcpy(&src_token_[row], in + topk * (sizeof(std::int32_t) + sizeof(float)), sizeof(std::int32_t));
  }
}

void MpiExchange::dispatch(const MpiInput& input) {
  num_tokens_ = input.num_tokens;
  choose_ranks(input);
  MPI_Alltoall(send_count_.data(), 1, MPI_INT, recv_count_.data(), 1, MPI_INT, MPI_COMM_WORLD);
  sum_up(send_count_, send_first_);
  sum_up(recv_count_, recv_first_);
  num_rows_ = recv_first_.back() + recv_count_.back();
  pack(input);
  const MPI_Datatype packet = *static_cast<MPI_Datatype*>(packet_type_);
  MPI_Alltoallv(packed_.data(),
                send_count_.data(),
                send_first_.data(),
                packet,
                received_.data(),
                recv_count_.data(),
                recv_first_.data(),
                packet,
                MPI_COMM_WORLD);
  unpack();
}

void MpiExchange::combine(const std::byte* rows) {
  const MPI_Datatype row = *static_cast<MPI_Datatype*>(row_type_);
  MPI_Alltoallv(rows,
                recv_count_.data(),
                recv_first_.data(),
                row,
                returned_.data(),
                send_count_.data(),
                send_first_.data(),
                row,
                MPI_COMM_WORLD);
  sum_tokens();
}

void MpiExchange::sum_tokens() noexcept {
  for (std::size_t n = 0; n < idx(num_tokens_); ++n) sum_token(n);
}

void MpiExchange::sum_token(std::size_t token) noexcept {
  const auto topk = idx(shape_.num_topk);
  const auto columns = idx(shape_.combine_columns);
  float* const acc = acc_.data();
  std::fill(acc_.begin(), acc_.end(), 0.0F);
  for (std::size_t k = 0; k < topk; ++k) {
    const std::int32_t rank = ranks_of_[token * topk + k];
    if (rank < 0) continue;
    const std::size_t at = idx(send_first_[idx(rank)]) + idx(place_of_[token * topk + k]);
    // Rows of bf16 in a byte buffer that is aligned for them: vector memory, even offsets.
    const auto* const row = reinterpret_cast<const std::uint16_t*>(returned_.data()) + at * columns;
    for (std::size_t c = 0; c < columns; ++c) acc[c] += widen(row[c]);
  }
  auto* const out = reinterpret_cast<std::uint16_t*>(combined_.data()) + token * columns;
  for (std::size_t c = 0; c < columns; ++c) out[c] = narrow(acc[c]);
}

}  // namespace moebus::peers

#include "transport/stream_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "moebus/types.hpp"
#include "moebus/version.hpp"
#include "transport/store_checks.hpp"

namespace moebus::transport {
namespace {

static_assert(kMaxRanks <= 64, "kMaxAnswerBytes holds the values of 64 ranks");

void put_bytes_of(char* to, std::uint32_t value, int num_bytes) noexcept {
  for (int i = 0; i < num_bytes; ++i) to[i] = static_cast<char>((value >> (8 * i)) & 0xFFU);
}

std::uint32_t bytes_to_number(const char* from, int num_bytes) noexcept {
  std::uint32_t value = 0;
  for (int i = 0; i < num_bytes; ++i) {
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(from[i])) << (8 * i);
  }
  return value;
}

}  // namespace

FrameHeader make_frame_header(FrameType type, std::size_t payload_bytes) noexcept {
  FrameHeader header;
  put_bytes_of(header.data(), kFrameMagic, 4);
  put_bytes_of(header.data() + 4, kFrameVersion, 2);
  put_bytes_of(header.data() + 6, static_cast<std::uint32_t>(type), 2);
  put_bytes_of(header.data() + 8, static_cast<std::uint32_t>(payload_bytes), 4);
  return header;
}

ParsedHeader parse_frame_header(const FrameHeader& header, std::size_t max_payload_bytes) {
  ParsedHeader parsed;
  const std::uint32_t version = bytes_to_number(header.data() + 4, 2);
  const std::uint32_t type = bytes_to_number(header.data() + 6, 2);
  parsed.payload_bytes = bytes_to_number(header.data() + 8, 4);
  if (bytes_to_number(header.data(), 4) != kFrameMagic) {
    parsed.error = "what came is not of moebus";
  } else if (version != kFrameVersion) {
    parsed.error =
        fmt::format("the other side speaks store protocol {}, this one {}; use one version of moebus on all ranks",
                    version,
                    kFrameVersion);
  } else if (type < static_cast<std::uint32_t>(FrameType::hello) ||
             type > static_cast<std::uint32_t>(FrameType::failed)) {
    parsed.error = fmt::format("frame type {} is unknown", type);
  } else if (parsed.payload_bytes > max_payload_bytes) {
    parsed.error =
        fmt::format("a frame of {} bytes where at most {} are allowed", parsed.payload_bytes, max_payload_bytes);
  }
  parsed.type = static_cast<FrameType>(type);
  return parsed;
}

PayloadWriter& PayloadWriter::number(std::uint32_t value) {
  char digits[4];
  put_bytes_of(digits, value, 4);
  payload_.append(digits, sizeof digits);
  return *this;
}

PayloadWriter& PayloadWriter::size(std::uint64_t value) {
  return number(static_cast<std::uint32_t>(value)).number(static_cast<std::uint32_t>(value >> 32));
}

PayloadWriter& PayloadWriter::bytes(std::string_view value) {
  number(static_cast<std::uint32_t>(value.size()));
  return raw(value);
}

PayloadWriter& PayloadWriter::raw(std::string_view value) {
  payload_.append(value);
  return *this;
}

std::uint32_t PayloadReader::number() noexcept {
  const std::string_view digits = raw(4);
  return is_good_ ? bytes_to_number(digits.data(), 4) : 0;
}

std::uint64_t PayloadReader::size() noexcept {
  const std::uint64_t low = number();
  return low | (static_cast<std::uint64_t>(number()) << 32);
}

std::string_view PayloadReader::bytes() noexcept { return raw(number()); }

std::string_view PayloadReader::raw(std::size_t num_bytes) noexcept {
  if (!is_good_ || num_bytes > left_.size()) {
    is_good_ = false;
    return {};
  }
  const std::string_view value = left_.substr(0, num_bytes);
  left_.remove_prefix(num_bytes);
  return value;
}

std::string to_payload(const Hello& hello) {
  return PayloadWriter()
      .bytes(hello.version)
      .number(static_cast<std::uint32_t>(hello.rank))
      .number(static_cast<std::uint32_t>(hello.num_ranks))
      .raw(as_bytes(hello.nonce))
      .take();
}

std::optional<Hello> parse_hello(std::string_view payload) {
  PayloadReader reader(payload);
  Hello hello;
  hello.version = std::string(reader.bytes());
  hello.rank = static_cast<int>(reader.number());
  hello.num_ranks = static_cast<int>(reader.number());
  const std::string_view nonce = reader.raw(hello.nonce.size());
  if (!reader.is_done()) return std::nullopt;
  std::copy(nonce.begin(), nonce.end(), hello.nonce.begin());
  return hello;
}

std::string to_payload(const StoreFailure& failure) {
  return PayloadWriter()
      .number(static_cast<std::uint32_t>(failure.code))
      .number(static_cast<std::uint32_t>(failure.origin_rank))
      .bytes(failure.message)
      .take();
}

std::optional<StoreFailure> parse_failure(std::string_view payload) {
  PayloadReader reader(payload);
  StoreFailure failure;
  const std::uint32_t code = reader.number();
  failure.origin_rank = static_cast<int>(reader.number());
  failure.message = std::string(reader.bytes());
  const bool is_code = code >= static_cast<std::uint32_t>(ErrorCode::invalid_argument) &&
                       code <= static_cast<std::uint32_t>(ErrorCode::internal);
  const bool is_rank = failure.origin_rank >= -1 && failure.origin_rank < kMaxRanks;
  if (!reader.is_done() || !is_code || !is_rank) return std::nullopt;
  failure.code = static_cast<ErrorCode>(code);
  return failure;
}

std::optional<Deposit> parse_deposit(std::string_view payload) {
  PayloadReader reader(payload);
  const std::string_view step = reader.bytes();
  const std::string_view value = reader.bytes();
  if (!reader.is_done() || step.size() > kMaxStepBytes || value.size() > Store::kMaxMessageBytes) return std::nullopt;
  return Deposit{std::string(step), std::string(value)};
}

std::string to_payload(const std::vector<std::string>& values) {
  PayloadWriter writer;
  writer.number(static_cast<std::uint32_t>(values.size()));
  for (const std::string& value : values) writer.bytes(value);
  return writer.take();
}

std::optional<std::vector<std::string>> parse_values(std::string_view payload, int num_ranks) {
  PayloadReader reader(payload);
  if (reader.number() != static_cast<std::uint32_t>(num_ranks)) return std::nullopt;
  std::vector<std::string> values;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::string_view value = reader.bytes();
    if (!reader.is_good() || value.size() > Store::kMaxMessageBytes) return std::nullopt;
    values.emplace_back(value);
  }
  if (!reader.is_done()) return std::nullopt;
  return values;
}

std::string ranks_to_payload(const std::vector<int>& ranks) {
  PayloadWriter writer;
  for (const int rank : ranks) writer.number(static_cast<std::uint32_t>(rank));
  return writer.take();
}

std::vector<int> parse_ranks(std::string_view payload) {
  std::vector<int> ranks;
  PayloadReader reader(payload.substr(0, kMaxRanks * sizeof(std::uint32_t)));
  for (;;) {
    const std::uint32_t rank = reader.number();
    if (!reader.is_good()) return ranks;
    if (rank < static_cast<std::uint32_t>(kMaxRanks)) ranks.push_back(static_cast<int>(rank));
  }
}

std::string library_version() { return fmt::format("{}.{}.{}", kVersionMajor, kVersionMinor, kVersionPatch); }

std::string printable(std::string_view text) {
  std::string shown(text.substr(0, 512));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

}  // namespace moebus::transport

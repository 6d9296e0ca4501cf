// Stream frame: what travels on a store's sockets: a header (magic, version, type, length) and a payload.
// Room: transport · host. Little endian, whatever the machine.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/store.hpp"
#include "transport/store_failure.hpp"
#include "transport/token_proof.hpp"

namespace moebus::transport {

enum class FrameType : std::uint16_t {
  hello = 1,    ///< client: who I am
  challenge,    ///< hub: prove it
  proof,        ///< client: here
  welcome,      ///< hub: you are in, and this is my proof
  turned_away,  ///< hub: you are not, because
  ready,        ///< hub: all are in
  waiting,      ///< hub: these ranks are missing
  value,        ///< client: step and value
  values,       ///< hub: everybody's
  refused,      ///< hub: this step cannot be, the store goes on
  failed,       ///< either: the store is at its end, because
};

struct Frame {
  FrameType type{};
  std::string payload;
};

inline constexpr std::uint32_t kFrameMagic = 0x5342454D;  // "MEBS" in memory
inline constexpr std::uint16_t kFrameVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 12;
using FrameHeader = std::array<char, kFrameHeaderBytes>;

/// Most payload bytes before a client has proved itself, of one value, and of the answer with all values.
inline constexpr std::size_t kMaxGreetingBytes = 1024;
inline constexpr std::size_t kMaxValueBytes = Store::kMaxMessageBytes + 1024;
inline constexpr std::size_t kMaxAnswerBytes = 64 * (Store::kMaxMessageBytes + 8) + 8;

FrameHeader make_frame_header(FrameType type, std::size_t payload_bytes) noexcept;

struct ParsedHeader {
  FrameType type{};
  std::size_t payload_bytes = 0;
  std::string error;  ///< empty = good
};

/// Checks a header; a payload above `max_payload_bytes` is an error before anything is allocated for it.
ParsedHeader parse_frame_header(const FrameHeader& header, std::size_t max_payload_bytes);

/// Appends numbers and byte strings to a payload.
class PayloadWriter {
 public:
  PayloadWriter& number(std::uint32_t value);
  PayloadWriter& size(std::uint64_t value);
  PayloadWriter& bytes(std::string_view value);  ///< with its length
  PayloadWriter& raw(std::string_view value);    ///< without

  [[nodiscard]] std::string take() { return std::move(payload_); }

 private:
  std::string payload_;
};

/// Takes a payload apart. After the first thing that is not there every read gives zero or empty, and is_good() is
/// false.
class PayloadReader {
 public:
  explicit PayloadReader(std::string_view payload) noexcept : left_(payload) {}

  std::uint32_t number() noexcept;
  std::uint64_t size() noexcept;
  std::string_view bytes() noexcept;
  std::string_view raw(std::size_t num_bytes) noexcept;

  /// True if all reads were good and nothing is left.
  [[nodiscard]] bool is_done() const noexcept { return is_good_ && left_.empty(); }

  [[nodiscard]] bool is_good() const noexcept { return is_good_; }

 private:
  std::string_view left_;
  bool is_good_ = true;
};

/// A client's first message.
struct Hello {
  std::string version;  ///< of the library
  int rank = -1;
  int num_ranks = 0;
  Nonce nonce{};
};

std::string to_payload(const Hello& hello);
std::optional<Hello> parse_hello(std::string_view payload);

std::string to_payload(const StoreFailure& failure);
std::optional<StoreFailure> parse_failure(std::string_view payload);

/// What a client gives to a step.
struct Deposit {
  std::string step;
  std::string value;
};

/// Returns nothing if a length exceeds what a step's name or a value may have.
std::optional<Deposit> parse_deposit(std::string_view payload);

/// Everybody's values. Returns nothing if they are not `num_ranks`, or if one is longer than a value may be.
std::string to_payload(const std::vector<std::string>& values);
std::optional<std::vector<std::string>> parse_values(std::string_view payload, int num_ranks);

std::string ranks_to_payload(const std::vector<int>& ranks);
/// Leaves out what is no rank, and all after the most ranks that a group can have.
std::vector<int> parse_ranks(std::string_view payload);

/// Returns the library's version as ranks compare it.
std::string library_version();

/// Returns `text` with everything but printable ASCII replaced, at most 512 characters: for words of strangers in our
/// messages.
std::string printable(std::string_view text);

}  // namespace moebus::transport

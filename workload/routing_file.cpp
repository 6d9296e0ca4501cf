#include <fstream>
#include <nlohmann/json.hpp>

#include "moebus/error.hpp"
#include "workload/routing.hpp"

namespace moebus::workload {

namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{16} << 10U;
constexpr std::size_t kMaxLines = std::size_t{4} << 20U;

class LineReader {
 public:
  LineReader(const std::string& path, const RoutingShape& shape) : path_(path), shape_(shape) {}

  /// Takes the next line, of one that is too long only as much as shows it; false if there is none.
  bool take_line(std::istream& file, std::string& line) {
    file.getline(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    const auto num_taken = static_cast<std::size_t>(file.gcount());
    const bool has_newline = file.good();
    line.assign(buffer_.data(), has_newline ? num_taken - 1 : num_taken);
    return num_taken > 0;
  }

  void read(const std::string& line, std::vector<std::int64_t>& ids) {
    ++line_number_;
    if (line.size() > kMaxLineBytes) reject("is longer than " + std::to_string(kMaxLineBytes) + " bytes");
    if (line_number_ > kMaxLines) reject("is one too many, a file may have " + std::to_string(kMaxLines));
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_array()) reject("is not a JSON array");
    if (json.size() != static_cast<std::size_t>(shape_.num_topk)) {
      reject("has " + std::to_string(json.size()) + " ids, top-k is " + std::to_string(shape_.num_topk));
    }
    for (const auto& value : json) ids.push_back(read_id(value));
  }

 private:
  std::int64_t read_id(const nlohmann::json& value) const {
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() || value.get<std::uint64_t>() < static_cast<std::uint64_t>(shape_.num_experts));
    const std::int64_t expert = fits ? value.get<std::int64_t>() : -2;
    if (expert < -1 || expert >= shape_.num_experts) {
      // Only scalars are shown: printing what is nested goes as deep as it does.
      const std::string shown = value.is_structured() ? std::string("that is an ") + value.type_name() : value.dump();
      reject("has the id " + shown + ", allowed are -1 (no expert) to " + std::to_string(shape_.num_experts - 1));
    }
    return expert;
  }

  [[noreturn]] void reject(const std::string& what) const {
    throw Error(ErrorCode::invalid_argument,
                "routing file " + path_ + ": line " + std::to_string(line_number_) + " " + what);
  }

  const std::string& path_;
  const RoutingShape& shape_;
  std::size_t line_number_ = 0;
  std::vector<char> buffer_ = std::vector<char>(kMaxLineBytes + 2);
};

}  // namespace

std::vector<std::int64_t> read_routing_file(const std::string& path, const RoutingShape& shape) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::not_found, "routing file " + path + " cannot be opened; is the path right?");
  std::vector<std::int64_t> ids;
  LineReader reader(path, shape);
  std::string line;
  while (reader.take_line(file, line)) reader.read(line, ids);
  if (ids.empty())
    throw Error(ErrorCode::invalid_argument, "routing file " + path + " has no lines, at least one is needed");
  return ids;
}

}  // namespace moebus::workload

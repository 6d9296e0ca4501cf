#include "moebus/types.hpp"

namespace moebus {

std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::u8:
      return "u8";
    case DType::i8:
      return "i8";
    case DType::e4m3:
      return "e4m3";
    case DType::e5m2:
      return "e5m2";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i16:
      return "i16";
    case DType::i32:
      return "i32";
    case DType::f32:
      return "f32";
    case DType::i64:
      return "i64";
    case DType::f64:
      return "f64";
  }
  return "unknown";
}

std::string_view to_string(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::host:
      return "host";
    case MemoryKind::device:
      return "device";
  }
  return "unknown";
}

std::string_view to_string(Path path) noexcept {
  switch (path) {
    case Path::latency:
      return "latency";
    case Path::throughput:
      return "throughput";
  }
  return "unknown";
}

std::string_view to_string(Delivery delivery) noexcept {
  switch (delivery) {
    case Delivery::direct:
      return "direct";
    case Delivery::staged:
      return "staged";
  }
  return "unknown";
}

std::string_view to_string(Layout layout) noexcept {
  switch (layout) {
    case Layout::rank_major:
      return "rank_major";
    case Layout::expert_major:
      return "expert_major";
    case Layout::expert_padded:
      return "expert_padded";
  }
  return "unknown";
}

std::string_view to_string(CombineRows rows) noexcept {
  switch (rows) {
    case CombineRows::per_rank:
      return "per_rank";
    case CombineRows::per_expert:
      return "per_expert";
  }
  return "unknown";
}

std::string_view to_string(Cast cast) noexcept {
  switch (cast) {
    case Cast::none:
      return "none";
    case Cast::fp8:
      return "fp8";
  }
  return "unknown";
}

std::string_view to_string(ScaleFormat format) noexcept {
  switch (format) {
    case ScaleFormat::none:
      return "none";
    case ScaleFormat::f32:
      return "f32";
    case ScaleFormat::ue8m0:
      return "ue8m0";
  }
  return "unknown";
}

std::string_view to_string(ScaleOrder order) noexcept {
  switch (order) {
    case ScaleOrder::row_major:
      return "row_major";
    case ScaleOrder::column_major:
      return "column_major";
  }
  return "unknown";
}

std::string_view to_string(Weighting weighting) noexcept {
  switch (weighting) {
    case Weighting::none:
      return "none";
    case Weighting::dispatched:
      return "dispatched";
    case Weighting::given:
      return "given";
  }
  return "unknown";
}

std::string_view to_string(InterNode inter_node) noexcept {
  switch (inter_node) {
    case InterNode::gateway:
      return "gateway";
    case InterNode::direct:
      return "direct";
  }
  return "unknown";
}

std::string_view to_string(MapPeers map_peers) noexcept {
  switch (map_peers) {
    case MapPeers::reachable:
      return "reachable";
    case MapPeers::node:
      return "node";
    case MapPeers::none:
      return "none";
  }
  return "unknown";
}

}  // namespace moebus

#!/usr/bin/env bash
# Puts a CUDA toolkit below build/cuda-toolkit/VERSION: nvcc, the runtime and their headers, nothing else of CUDA.
#   cuda_toolkit.sh 13.0   from PyPI, where NVIDIA publishes it as wheels
#   cuda_toolkit.sh 12.9   a link to one that is installed: CUDACXX, or /usr/local/cuda-12.9. (The wheels of CUDA 12 hold
#                          ptxas alone, without nvcc.)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${1:-}
folder=build/cuda-toolkit/$version

has_version() { [[ -x $1 ]] && "$1" --version | grep -q "release $version,"; }

case $version in
  13.0)
    if has_version "$folder/bin/nvcc"; then exit 0; fi
    if ! python3 -m pip --version >/dev/null 2>&1; then
      echo "cuda_toolkit.sh: python3 has no pip; install python3-pip, or a CUDA $version toolkit in /usr/local/cuda" >&2
      exit 1
    fi
    echo "cuda_toolkit.sh: installing CUDA $version from PyPI below $folder"
    rm -rf "$folder" "$folder.wheels"
    python3 -m pip install --quiet --root-user-action=ignore --no-deps --no-compile --target "$folder.wheels" \
      "nvidia-cuda-nvcc==$version.*" "nvidia-cuda-crt==$version.*" "nvidia-nvvm==$version.*" \
      "nvidia-cuda-runtime==$version.*" "nvidia-cuda-cccl==$version.*"
    mv "$folder.wheels/nvidia/cu13" "$folder"
    rm -rf "$folder.wheels"
    # pip keeps no execute bits of files that are no scripts; nvcc and CMake look for libraries in lib64.
    find "$folder/bin" "$folder/nvvm/bin" -type f -exec chmod +x {} +
    ln -sfn lib "$folder/lib64"
    ;;
  12.9)
    for nvcc in "${CUDACXX:-}" "/usr/local/cuda-$version/bin/nvcc" /usr/local/cuda/bin/nvcc; do
      if ! has_version "$nvcc"; then continue; fi
      mkdir -p "$(dirname "$folder")"
      ln -sfn "$(dirname "$(dirname "$(realpath "$nvcc")")")" "$folder"
      break
    done
    ;;
  *) echo "usage: cuda_toolkit.sh 13.0|12.9" >&2; exit 2 ;;
esac

if ! has_version "$folder/bin/nvcc"; then
  echo "cuda_toolkit.sh: no nvcc $version: install NVIDIA's toolkit in /usr/local/cuda-$version or name its nvcc in CUDACXX" >&2
  exit 1
fi

#!/usr/bin/env bash
# Checks a machine with a real GPU in under 8 minutes: kernel tests on it, then SmolLM2 and Gemma 3 270M over Vulkan with
# the achieved share of the memory's measured speed, and what decisions cost. Build first: cargo test --release --workspace --no-run
# Usage: tests/gpu.sh FOLDER-WITH-smollm2.gguf-AND-gemma3-270m.gguf [DEVICE]
set -euo pipefail
models=$(realpath "${1:?the folder with the models}")
device=${2:-gpu}
cd "$(dirname "$0")/.."
target/release/laneway devices
LANEWAY_TEST_DEVICE=$device LANEWAY_TEST_MODELS=$models \
  cargo test --release --workspace --lib --test fixtures --test diffusion --test masked -- \
  kernel_tests:: draft_tests:: kernels_ two_lanes real_models labels_are copied_pages a_whole_canvas blocks_see
for model in smollm2 gemma3-270m; do
  target/release/laneway bench --device "$device" --model "$models/$model.gguf" --prompt 512 --generate 128 --runs 3
done
target/release/laneway bench --read --device "$device" --model "$models/smollm2.gguf" --prompt 500 --runs 3

#!/bin/sh
# The pretrained models on an NVIDIA GPU of a machine without a network, in one go.
#
#     tools/cuda_machine.sh pack FOLDER [CHIP]           where there is a network: compiles for the chip (sm_80)
#     tools/cuda_machine.sh run FOLDER [CHIP] [SKU]      there, in a copy of this checkout and of the folder
#
# FOLDER gets wheels of IREE and of what this toolkit needs, and an archive of the cache. `run` makes an environment
# below it, runs suites/cuda.toml and, where $OPERATORS names a folder of ONNX operator cases, those; it ends with the
# worst exit code. Reports are in runs/, as always.
set -eu
cd "$(dirname "$0")/.."
command=${1:-} folder=${2:-} chip=${3:-sm_80} sku=${4:-}
usage() { echo "cuda_machine.sh: $1" >&2; sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
case $command in pack | run) ;; '') usage 'no command' ;; *) usage "unknown command '$command'" ;; esac
[ -n "$folder" ] || usage 'no folder'
case $chip in sm_[0-9]*) ;; *) usage "'$chip' is no CUDA chip: expected sm_80, sm_90 or the like" ;; esac
[ "$command" = pack ] || [ -f "$folder/cuda.tar" ] || usage "no cuda.tar in '$folder': was it made by 'pack'?"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
export IREE_GAUNTLET_CACHE="$folder/cache"
case $command in
pack)
    python3 -m venv "$folder/packing"
    "$folder/packing/bin/pip" install -q -e '.[iree]'
    "$folder/packing/bin/pip" download -q -d "$folder/wheels" '.[iree]' hatchling
    "$folder/packing/bin/gauntlet" compile --suite cuda --target "$chip"
    "$folder/packing/bin/gauntlet" cache.export --suite cuda --target "$chip" --output "$folder/cuda.tar"
    rm -rf "$folder/packing" "$folder/cache"
    echo "copy this checkout and $folder, then: tools/cuda_machine.sh run $folder $chip"
    ;;
run)
    python3 -m venv "$folder/env"
    "$folder/env/bin/pip" install -q --no-index --find-links "$folder/wheels" '.[iree]'
    gauntlet="$folder/env/bin/gauntlet"
    "$gauntlet" devices
    "$gauntlet" cache.import "$folder/cuda.tar"
    worst=0
    "$gauntlet" run --suite cuda --target "$chip" ${sku:+--sku "$sku"} --offline || worst=$?
    if [ -n "${OPERATORS:-}" ]; then
        config="$folder/cuda.json"
        printf '{"config_name": "gpu_cuda", "iree_compile_flags": ["--iree-hal-target-device=cuda", "--iree-cuda-target=%s"], "iree_run_module_flags": ["--device=cuda"]}\n' "$chip" > "$config"
        "$gauntlet" run --spec-dir "$OPERATORS" --config "$config" --offline || worst=$?
    fi
    exit "$worst"
    ;;
esac

#!/bin/bash
# One node with 8 GPUs: eight trials at a time, a GPU and eight cores each. Give your workload and its target:
#   WORKLOAD=my_model:workload TARGET=3.2 bash eight_gpus.sh
# Trials too slow for one GPU: --workers-per-trial 4 in place of --gpus-per-trial 1, two trials at a time.
set -euo pipefail
cbs sweep --optim merit --optim adamw --workload "$WORKLOAD" --target "$TARGET" --batch-sizes 64..4096 --seeds 3 \
    --gpus-per-trial 1 --set cpus_per_trial=8 -o "${RESULTS:-results/eight-gpus}"
cbs analyze "${RESULTS:-results/eight-gpus}"

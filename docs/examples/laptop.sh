#!/bin/bash
# A laptop: one trial per core, nothing starts after two hours. The same command goes on where this one ended.
set -euo pipefail
cbs sweep --recipe quick --optim merit --optim adamw --max-time 2h -o results/laptop
cbs analyze results/laptop

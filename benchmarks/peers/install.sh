#!/bin/sh
# An environment for each peer, so that their pinned dependencies do not clash with ours or with each other's.
# Usage: benchmarks/peers/install.sh [python]      Give pip a CPU build of torch, or it brings gigabytes of CUDA along.
set -eu
python=${1:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
torch=2.13.0  # the version in constraints.txt: the arithmetic is the same for all

install() { # name, then what pip is to install
    environment=$root/.venv-peers/$1
    shift
    [ -e "$environment/installed" ] && return
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet "torch==$torch" numpy "$@"
    touch "$environment/installed"
}

install flower "flwr[simulation]==1.41.0"
install pfl "pfl==0.6.0"
install opacus "opacus==1.6.0"
install crypten onnx omegaconf pyyaml
"$root/.venv-peers/crypten/bin/python" -m pip install --quiet --no-deps crypten==0.4.1  # what else it asks for is for its examples

plain() { # the same without torch, for peers that do not compute with it
    environment=$root/.venv-peers/$1
    shift
    [ -e "$environment/installed" ] && return
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet "$@"
    touch "$environment/installed"
}

plain anjana "anjana==1.2.3"
plain openmined "openmined-psi==2.0.6"
plain spu "spu==0.9.5" # about 1 GB with the jax it asks for
